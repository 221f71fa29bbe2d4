#include "store/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace deltawire {
namespace {

using Case = void (*)(Store&);

constexpr uint64_t kAnySize = uint64_t{1} << 30;

Bytes Text(std::string_view text) {
  const auto bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> Names(Store& store, std::string_view prefix) {
  const auto infos = store.List(prefix);
  EXPECT_TRUE(infos) << infos.error().message();
  std::vector<std::string> names;
  if (infos)
    for (const auto& info : *infos) names.push_back(info.name);
  return names;
}

using Strings = std::vector<std::string>;

template <class T>
Code CodeOf(const Result<T>& result) {
  EXPECT_FALSE(result) << "expected an error";
  return result ? Code::kInternal : result.error().code();
}

void ExpectContent(Store& store, std::string_view name, const Bytes& expected) {
  const auto bytes = store.Get(name, kAnySize);
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(*bytes, expected);
}

// What a test writes first, with whatever condition the store has.
void MustPut(Store& store, std::string_view name, ByteSpan bytes) {
  const auto status = store.Put(name, bytes, Condition::kOverwrite);
  ASSERT_TRUE(status) << status.error().message();
}

void ReturnsWhatWasPut(Store& store) {
  Bytes every_byte;
  for (int i = 0; i < 256 * 5; ++i) every_byte.push_back(static_cast<uint8_t>(i));
  for (const auto& bytes : {Bytes(), Bytes{0}, every_byte, Bytes(3'000'000, 0x5A)}) {
    MustPut(store, "a/b/object", bytes);
    ExpectContent(store, "a/b/object", bytes);
    const auto info = store.Stat("a/b/object");
    ASSERT_TRUE(info) << info.error().message();
    EXPECT_EQ(info->name, "a/b/object");
    EXPECT_EQ(info->size_bytes, bytes.size());
    EXPECT_EQ(info->modified_unix_nanos > 0, store.capabilities().modification_times);
  }
}

void MissingObjectsAreNotFound(Store& store) {
  MustPut(store, "folder/object", Text("x"));
  for (const char* name :
       {"nothing", "folder", "folder/nothing", "folder/object/below", "no/such/folder/object"}) {
    EXPECT_EQ(CodeOf(store.Get(name, kAnySize)), Code::kNotFound) << name;
    EXPECT_EQ(CodeOf(store.GetRange(name, 0, 1)), Code::kNotFound) << name;
    EXPECT_EQ(CodeOf(store.Stat(name)), Code::kNotFound) << name;
  }
}

void UnsafeNamesAreRefused(Store& store) {
  for (const std::string name :
       {"", "/abs", "../up", "a/../b", "a//b", "a/", ".hidden", "a/.tmp-1", "a\\b", "C:x"}) {
    EXPECT_EQ(CodeOf(store.Get(name, kAnySize)), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf(store.GetRange(name, 0, 1)), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf(store.Stat(name)), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf(store.Put(name, Text("x"), Condition::kOverwrite)), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf(store.Create(name)), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf(store.Delete(name)), Code::kInvalidArgument) << name;
  }
  EXPECT_EQ(Names(store, ""), Strings());
}

void LargerThanAllowedIsRefused(Store& store) {
  MustPut(store, "object", Text("12345"));
  EXPECT_TRUE(store.Get("object", 5));
  EXPECT_EQ(CodeOf(store.Get("object", 4)), Code::kCorrupt);
}

void RangesAreExactOrRefused(Store& store) {
  MustPut(store, "object", Text("0123456789"));
  EXPECT_EQ(*store.GetRange("object", 0, 10), Text("0123456789"));
  EXPECT_EQ(*store.GetRange("object", 3, 4), Text("3456"));
  EXPECT_EQ(*store.GetRange("object", 10, 0), Bytes());
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 11}, {9, 2}, {10, 1}, {11, 0}, {UINT64_MAX, 1}, {1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}})
    EXPECT_EQ(CodeOf(store.GetRange("object", offset, length)), Code::kCorrupt) << offset << "+" << length;
}

void OverwriteReplaces(Store& store) {
  MustPut(store, "object", Text("a longer first text"));
  MustPut(store, "object", Text("second"));
  ExpectContent(store, "object", Text("second"));
  EXPECT_EQ(Names(store, ""), Strings{"object"});
}

void CreateIfAbsentKeepsTheFirst(Store& store) {
  ASSERT_TRUE(store.Put("a/object", Text("first"), Condition::kIfAbsent));
  EXPECT_EQ(CodeOf(store.Put("a/object", Text("second"), Condition::kIfAbsent)), Code::kExists);
  auto writer = store.Create("a/object");
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->Append(Text("third")));
  EXPECT_EQ(CodeOf((*writer)->Commit(Condition::kIfAbsent)), Code::kExists);
  writer->reset();
  ExpectContent(store, "a/object", Text("first"));
  EXPECT_EQ(Names(store, ""), Strings{"a/object"});
}

void CreateIfAbsentHasOneWinner(Store& store) {
  for (int round = 0; round < 25; ++round) {
    const auto name = fmt::format("race/{}", round);
    std::atomic<int> wins = 0;
    std::atomic<int> losses = 0;
    std::atomic<int> winner = -1;
    std::vector<std::thread> threads;
    for (int id = 0; id < 4; ++id)
      threads.emplace_back([&, id] {
        const auto status = store.Put(name, Text(std::to_string(id)), Condition::kIfAbsent);
        if (status) {
          ++wins;
          winner = id;
        } else if (status.error().code() == Code::kExists) {
          ++losses;
        }
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wins, 1);
    EXPECT_EQ(losses, 3);
    ExpectContent(store, name, Text(std::to_string(winner)));
  }
}

void CreateIfAbsentIsRefusedWithoutTheCapability(Store& store) {
  EXPECT_EQ(CodeOf(store.Put("object", Text("x"), Condition::kIfAbsent)), Code::kUnsupported);
  EXPECT_EQ(Names(store, ""), Strings());
}

void WritersShowNothingBeforeCommit(Store& store) {
  {
    auto writer = store.Create("a/object");
    ASSERT_TRUE(writer) << writer.error().message();
    ASSERT_TRUE((*writer)->Append(Text("12")));
    ASSERT_TRUE((*writer)->Append({}));
    ASSERT_TRUE((*writer)->Append(Text("345")));
    EXPECT_EQ(CodeOf(store.Get("a/object", kAnySize)), Code::kNotFound);
    EXPECT_EQ(Names(store, ""), Strings());
    ASSERT_TRUE((*writer)->Commit(Condition::kOverwrite));
  }
  ExpectContent(store, "a/object", Text("12345"));
}

void WritersDestroyedUncommittedLeaveNothing(Store& store) {
  MustPut(store, "kept", Text("old"));
  for (const char* name : {"a/b/new", "kept"}) {
    auto writer = store.Create(name);
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->Append(Text("new")));
  }
  EXPECT_EQ(Names(store, ""), Strings{"kept"});
  ExpectContent(store, "kept", Text("old"));
}

void EmptyObjectsCanBeStreamed(Store& store) {
  auto writer = store.Create("empty");
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->Commit(Condition::kOverwrite));
  ExpectContent(store, "empty", Bytes());
}

void ListIsSortedAndByPrefix(Store& store) {
  for (const char* name : {"b", "a/2", "a/10", "a-b", "a/x/1", "ab/1", "Z"}) MustPut(store, name, Text(name));
  EXPECT_EQ(Names(store, ""), (Strings{"Z", "a-b", "a/10", "a/2", "a/x/1", "ab/1", "b"}));
  EXPECT_EQ(Names(store, "a"), (Strings{"a-b", "a/10", "a/2", "a/x/1", "ab/1"}));
  EXPECT_EQ(Names(store, "a/"), (Strings{"a/10", "a/2", "a/x/1"}));
  EXPECT_EQ(Names(store, "a/x"), (Strings{"a/x/1"}));
  EXPECT_EQ(Names(store, "a/x/1"), (Strings{"a/x/1"}));
  for (const char* prefix : {"c", "a/x/1/", "../", "/", "a//", "nothing/here/"})
    EXPECT_EQ(Names(store, prefix), Strings()) << prefix;
  const auto infos = store.List("a/10");
  ASSERT_TRUE(infos);
  EXPECT_EQ(infos->front(), *store.Stat("a/10"));
}

void DeleteIsIdempotent(Store& store) {
  MustPut(store, "a/b/one", Text("1"));
  MustPut(store, "a/two", Text("2"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(store.Delete("a/b/one"));
    EXPECT_TRUE(store.Delete("never/there"));
    EXPECT_TRUE(store.Delete("a"));
    EXPECT_TRUE(store.Delete("a/two/below"));
  }
  EXPECT_EQ(Names(store, ""), Strings{"a/two"});
  MustPut(store, "a/b/one", Text("again"));
  ExpectContent(store, "a/b/one", Text("again"));
}

void WritingAndDeletingNeighboursAtOnce(Store& store) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id)
    threads.emplace_back([&, id] {
      for (int i = 0; i < 50; ++i) {
        const auto name = fmt::format("shared/folder/{}", id);
        if (!store.Put(name, Text(name), Condition::kOverwrite)) ++failures;
        const auto bytes = store.Get(name, kAnySize);
        if (!bytes || *bytes != Text(name)) ++failures;
        if (!store.Delete(name)) ++failures;
        if (!store.List("shared/")) ++failures;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(Names(store, ""), Strings());
}

void ReadersOfAnOverwrittenObjectSeeOneVersion(Store& store) {
  const Bytes old_bytes(200'000, 1);
  const Bytes new_bytes(200'000, 2);
  MustPut(store, "object", old_bytes);
  std::atomic<bool> stop = false;
  std::atomic<int> mixed = 0;
  std::thread reader([&] {
    while (!stop) {
      const auto bytes = store.Get("object", kAnySize);
      if (!bytes || (*bytes != old_bytes && *bytes != new_bytes)) ++mixed;
    }
  });
  for (int i = 0; i < 20; ++i) MustPut(store, "object", i % 2 == 0 ? new_bytes : old_bytes);
  stop = true;
  reader.join();
  EXPECT_EQ(mixed, 0);
}

void CleaningTouchesNoObject(Store& store) {
  MustPut(store, "a/object", Text("x"));
  EXPECT_EQ(*store.CleanTemporary(0), 0u);
  EXPECT_EQ(Names(store, ""), Strings{"a/object"});
}

void DescribesItself(Store& store) { EXPECT_FALSE(store.Describe().empty()); }

class ConformanceTest : public ::testing::Test {
 public:
  ConformanceTest(std::function<std::shared_ptr<Store>()> make_empty, Case test)
      : make_empty_(std::move(make_empty)), test_(test) {}
  void TestBody() override {
    const auto store = make_empty_();
    ASSERT_NE(store, nullptr);
    test_(*store);
  }

 private:
  std::function<std::shared_ptr<Store>()> make_empty_;
  Case test_;
};

}  // namespace

bool RegisterStoreConformance(const StoreDescription& description) {
  std::vector<std::pair<const char*, Case>> cases = {
      {"ReturnsWhatWasPut", ReturnsWhatWasPut},
      {"MissingObjectsAreNotFound", MissingObjectsAreNotFound},
      {"SEC03_UnsafeNamesAreRefused", UnsafeNamesAreRefused},
      {"LargerThanAllowedIsRefused", LargerThanAllowedIsRefused},
      {"RangesAreExactOrRefused", RangesAreExactOrRefused},
      {"OverwriteReplaces", OverwriteReplaces},
      {"WritersShowNothingBeforeCommit", WritersShowNothingBeforeCommit},
      {"WritersDestroyedUncommittedLeaveNothing", WritersDestroyedUncommittedLeaveNothing},
      {"EmptyObjectsCanBeStreamed", EmptyObjectsCanBeStreamed},
      {"ListIsSortedAndByPrefix", ListIsSortedAndByPrefix},
      {"DeleteIsIdempotent", DeleteIsIdempotent},
      {"WritingAndDeletingNeighboursAtOnce", WritingAndDeletingNeighboursAtOnce},
      {"ReadersOfAnOverwrittenObjectSeeOneVersion", ReadersOfAnOverwrittenObjectSeeOneVersion},
      {"CleaningTouchesNoObject", CleaningTouchesNoObject},
      {"DescribesItself", DescribesItself},
  };
  if (description.make_empty()->capabilities().create_if_absent) {
    cases.emplace_back("CreateIfAbsentKeepsTheFirst", CreateIfAbsentKeepsTheFirst);
    cases.emplace_back("CreateIfAbsentHasOneWinner", CreateIfAbsentHasOneWinner);
  } else {
    cases.emplace_back("CreateIfAbsentIsRefusedWithoutTheCapability",
                       CreateIfAbsentIsRefusedWithoutTheCapability);
  }
  for (const auto& [name, test] : cases)
    ::testing::RegisterTest(fmt::format("{}Conformance", description.name).c_str(), name, nullptr, nullptr,
                            __FILE__, __LINE__,
                            [make_empty = description.make_empty, test]() -> ::testing::Test* {
                              return new ConformanceTest(make_empty, test);
                            });
  return true;
}

}  // namespace deltawire
