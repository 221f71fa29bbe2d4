#include "store/file/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "store/test_folder.h"

namespace deltawire {
namespace {

namespace fs = std::filesystem;

class FileStoreTest : public ::testing::Test {
 protected:
  FileStoreTest() { store_ = *FileStore::Open(root_, true); }

  std::vector<std::string> FilesOnDisk() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(root_))
      if (!entry.is_directory()) names.push_back(fs::relative(entry.path(), root_).string());
    return names;
  }
  void WriteRaw(const std::string& name, const std::string& text) const {
    fs::create_directories((fs::path(root_) / name).parent_path());
    std::ofstream(fs::path(root_) / name) << text;
  }

  TestFolder folder_;
  std::string root_ = folder_.path() + "/run";
  std::unique_ptr<FileStore> store_;
};

TEST_F(FileStoreTest, NothingIsWritableForOthers) {
  const auto old_mask = ::umask(0);
  const auto path = folder_.path() + "/new/run";
  const auto store = *FileStore::Open(path, true);
  ASSERT_TRUE(store->Put("a/b", AsBytes("x"), Condition::kIfAbsent));
  ::umask(old_mask);
  struct stat status;
  for (const auto& [name, mode] : std::vector<std::pair<std::string, mode_t>>{
           {folder_.path() + "/new", 0755}, {path, 0755}, {path + "/a", 0755}, {path + "/a/b", 0644}}) {
    ASSERT_EQ(::stat(name.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, mode) << name;
  }
}

TEST_F(FileStoreTest, TheUmaskIsRespected) {
  const auto old_mask = ::umask(0077);
  EXPECT_TRUE(store_->Put("a/b", AsBytes("x"), Condition::kIfAbsent));
  ::umask(old_mask);
  struct stat status;
  ASSERT_EQ(::stat((root_ + "/a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_EQ(::stat((root_ + "/a/b").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(FileStoreTest, SEC03_LinksAreNotFollowedOutOfTheRoot) {
  fs::create_directories(folder_.path() + "/secret");
  std::ofstream(folder_.path() + "/secret/key") << "secret";
  fs::create_directory_symlink(folder_.path() + "/secret", root_ + "/folder");
  fs::create_symlink(folder_.path() + "/secret/key", root_ + "/key");
  for (const char* name : {"key", "folder/key"}) {
    EXPECT_EQ(store_->Get(name, 100).error().code(), Code::kUnsupported) << name;
    EXPECT_EQ(store_->Stat(name).error().code(), Code::kUnsupported) << name;
  }
  EXPECT_EQ(store_->Put("folder/new", AsBytes("x"), Condition::kOverwrite).error().code(),
            Code::kUnsupported);
  EXPECT_EQ(store_->Delete("folder/key").error().code(), Code::kUnsupported);
  EXPECT_TRUE(store_->List("")->empty());
  EXPECT_TRUE(store_->List("folder/")->empty());
  // A link at the object's own name is replaced or removed, not followed.
  EXPECT_EQ(store_->Put("key", AsBytes("x"), Condition::kIfAbsent).error().code(), Code::kExists);
  EXPECT_TRUE(store_->Put("key", AsBytes("x"), Condition::kOverwrite));
  EXPECT_EQ(store_->Get("key", 100)->size(), 1u);
  EXPECT_EQ(fs::file_size(folder_.path() + "/secret/key"), 6u);
  EXPECT_FALSE(fs::exists(folder_.path() + "/secret/new"));
}

TEST_F(FileStoreTest, TheRootMayBeALink) {
  fs::create_directory_symlink(root_, folder_.path() + "/alias");
  const auto alias = FileStore::Open(folder_.path() + "/alias", true);
  ASSERT_TRUE(alias) << alias.error().message();
  ASSERT_TRUE((*alias)->Put("a", AsBytes("x"), Condition::kIfAbsent));
  EXPECT_TRUE(store_->Stat("a"));
}

TEST_F(FileStoreTest, StrangersInTheFolderAreNotListed) {
  WriteRaw("a/object", "x");
  WriteRaw(".hidden", "x");
  WriteRaw("a/.tmp-0123456789abcdef", "x");
  WriteRaw("a/with space", "x");
  WriteRaw(".git/config", "x");
  ASSERT_EQ(::mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  const auto infos = store_->List("");
  ASSERT_EQ(infos->size(), 1u);
  EXPECT_EQ(infos->front().name, "a/object");
  EXPECT_EQ(store_->Get("pipe", 10).error().code(), Code::kNotFound);
}

TEST_F(FileStoreTest, STO05_LeftoversOfDeadWritersAreCleanedByAge) {
  WriteRaw("a/b/.tmp-0123456789abcdef", "dead");
  WriteRaw(".tmp-fedcba9876543210", "dead");
  WriteRaw("a/object", "x");
  WriteRaw("a/.other", "not ours");
  auto live = store_->Create("a/live");
  ASSERT_TRUE((*live)->Append(AsBytes("12")));
  EXPECT_EQ(*store_->CleanTemporary(3'600'000), 0u);
  const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(root_ + "/a/b/.tmp-0123456789abcdef", hour_ago);
  fs::last_write_time(root_ + "/.tmp-fedcba9876543210", hour_ago);
  EXPECT_EQ(*store_->CleanTemporary(1'800'000), 2u);
  EXPECT_TRUE((*live)->Commit(Condition::kIfAbsent));
  EXPECT_EQ(store_->List("")->size(), 2u);
  EXPECT_TRUE(fs::exists(root_ + "/a/.other"));
}

TEST_F(FileStoreTest, DeleteRemovesEmptyFolders) {
  ASSERT_TRUE(store_->Put("a/b/c", AsBytes("x"), Condition::kIfAbsent));
  ASSERT_TRUE(store_->Put("a/d", AsBytes("x"), Condition::kIfAbsent));
  ASSERT_TRUE(store_->Delete("a/b/c"));
  EXPECT_FALSE(fs::exists(root_ + "/a/b"));
  EXPECT_TRUE(fs::exists(root_ + "/a/d"));
  ASSERT_TRUE(store_->Delete("a/d"));
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(FileStoreTest, TheRootMayDisappearAndComeBack) {
  fs::remove_all(root_);
  EXPECT_EQ(store_->Get("a", 10).error().code(), Code::kNotFound);
  EXPECT_EQ(store_->List("").error().code(), Code::kNotFound);
  EXPECT_EQ(store_->Put("a", AsBytes("x"), Condition::kOverwrite).error().code(), Code::kIo);
  EXPECT_TRUE(store_->Delete("a"));
  fs::create_directory(root_);
  EXPECT_TRUE(store_->Put("a", AsBytes("x"), Condition::kIfAbsent));
}

TEST_F(FileStoreTest, AnObjectInTheWayOfAFolderIsAnError) {
  ASSERT_TRUE(store_->Put("a", AsBytes("x"), Condition::kIfAbsent));
  EXPECT_EQ(store_->Put("a/b", AsBytes("x"), Condition::kOverwrite).error().code(), Code::kIo);
  ASSERT_TRUE(store_->Put("f/g", AsBytes("x"), Condition::kIfAbsent));
  EXPECT_FALSE(store_->Put("f", AsBytes("x"), Condition::kOverwrite));
  EXPECT_EQ(FilesOnDisk().size(), 2u);
}

// RLIMIT_FSIZE makes write(2) fail with EFBIG: a full disk that a test can have without root.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &saved_);
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, saved_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &saved_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit saved_;
  sighandler_t old_handler_;
};

TEST_F(FileStoreTest, STO06_AFullDiskLeavesNoTrace) {
  ASSERT_TRUE(store_->Put("object", AsBytes("old"), Condition::kIfAbsent));
  {
    const FileSizeLimit limit(1000);
    const auto status = store_->Put("object", Bytes(5000), Condition::kOverwrite);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kNoSpace);
    EXPECT_NE(status.error().message().find(root_ + "/object"), std::string::npos)
        << status.error().message();
    auto writer = store_->Create("streamed");
    ASSERT_TRUE((*writer)->Append(Bytes(900)));
    EXPECT_EQ((*writer)->Append(Bytes(900)).error().code(), Code::kNoSpace);
  }
  EXPECT_EQ(AsText(*store_->Get("object", 10)), "old");
  EXPECT_EQ(FilesOnDisk(), std::vector<std::string>{"object"});
  EXPECT_TRUE(store_->Put("object", Bytes(5000), Condition::kOverwrite));
}

TEST_F(FileStoreTest, ReadOnlyFoldersAreNamed) {
  ASSERT_TRUE(store_->Put("object", AsBytes("x"), Condition::kIfAbsent));
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(root_.c_str(), 0555), 0);
  // Root writes everywhere: for the file system, this thread is somebody else meanwhile.
  const int owner = ::setfsuid(::geteuid() == 0 ? 65534 : ::geteuid());
  const auto put = store_->Put("a", AsBytes("x"), Condition::kIfAbsent);
  const auto removed = store_->Delete("object");
  const auto read = store_->Get("object", 10);
  ::setfsuid(static_cast<uid_t>(owner));
  ::chmod(root_.c_str(), 0755);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kIo);
  EXPECT_NE(put.error().message().find(root_ + "/a"), std::string::npos) << put.error().message();
  EXPECT_EQ(removed.error().code(), Code::kIo);
  EXPECT_TRUE(read);
}

TEST_F(FileStoreTest, ATruncatedObjectIsRefusedWithNumbers) {
  ASSERT_TRUE(store_->Put("a", Bytes(100), Condition::kIfAbsent));
  ASSERT_EQ(::truncate((root_ + "/a").c_str(), 40), 0);
  const auto range = store_->GetRange("a", 30, 20);
  ASSERT_FALSE(range);
  EXPECT_EQ(range.error().code(), Code::kCorrupt);
  EXPECT_NE(range.error().message().find("40"), std::string::npos);
}

TEST_F(FileStoreTest, DescriptorsAreClosed) {
  const auto open_descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    (void)store_->Put("a/b", AsBytes("x"), Condition::kIfAbsent);
    (void)store_->Get("a/b", 10);
    (void)store_->Get("a/nothing", 10);
    (void)store_->List("");
    (void)store_->CleanTemporary(0);
    (void)store_->Create("c/d");
    (void)store_->Delete("a/b");
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace deltawire
