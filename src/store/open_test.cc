#include "store/open.h"

#include <gtest/gtest.h>

#include "store/test_folder.h"

namespace deltawire {
namespace {

TEST(OpenStore, TakesPathsAndFileUrls) {
  const TestFolder folder;
  const auto path = folder.path() + "/run 7";
  EXPECT_EQ(OpenStore(path, false).error().code(), Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(path));
  auto store = OpenStore(path, true);
  ASSERT_TRUE(store) << store.error().message();
  ASSERT_TRUE((*store)->Put("a", AsBytes("x"), Condition::kIfAbsent));
  for (const auto& url : {"file://" + folder.path() + "/run%207",
                          "file://localhost" + folder.path() + "/run%207", folder.path() + "/./run 7//"}) {
    const auto again = OpenStore(url, false);
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_TRUE((*again)->Stat("a")) << url;
    EXPECT_EQ((*again)->Describe(), (*store)->Describe());
  }
}

TEST(OpenStore, RefusesWhatItDoesNotHave) {
  for (const char* url : {"s3://bucket/run", "memory://x", "hf://org/repo"}) {
    const auto store = OpenStore(url, true);
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code(), Code::kUnsupported);
    EXPECT_NE(store.error().message().find("file:///"), std::string::npos);
  }
  for (const char* url :
       {"", "file://", "file://host/path", "file://relative", "file:///a%2", "file:///a%zz", "file:///a%00b"})
    EXPECT_EQ(OpenStore(url, true).error().code(), Code::kInvalidArgument) << url;
}

TEST(OpenStoreToRead, MakesNothingAndSeesTheFolderWhenItIsThere) {
  const TestFolder folder;
  const auto path = folder.path() + "/run/7";
  const auto store = OpenStoreToRead("file://" + path);
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_EQ((*store)->Get("a", 10).error().code(), Code::kNotFound);
  EXPECT_EQ((*store)->Stat("manifests/a").error().code(), Code::kNotFound);
  const auto listed = (*store)->List("manifests/");
  EXPECT_TRUE(listed ? listed->empty() : listed.error().code() == Code::kNotFound);
  EXPECT_FALSE((*store)->Put("a", AsBytes("x"), Condition::kIfAbsent));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run"));
  ASSERT_TRUE((*OpenStore(path, true))->Put("a", AsBytes("x"), Condition::kIfAbsent));
  EXPECT_TRUE((*store)->Stat("a"));
  EXPECT_EQ(OpenStoreToRead("s3://bucket/run").error().code(), Code::kUnsupported);
  EXPECT_FALSE(OpenStoreToRead(path + "/a")) << "a file";
}

TEST(OpenStore, AFileIsNoStore) {
  const TestFolder folder;
  const auto path = folder.path() + "/file";
  fclose(fopen(path.c_str(), "w"));
  EXPECT_FALSE(OpenStore(path, false));
  EXPECT_FALSE(OpenStore(path, true));
  EXPECT_FALSE(OpenStore(path + "/below", true));
}

}  // namespace
}  // namespace deltawire
