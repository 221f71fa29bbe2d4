#include "pubsub/journal.h"

#include "base/hash.h"
#include "pubsub/file_io.h"
#include "tensor/memory.h"

namespace deltawire::pubsub {
namespace {

// Layout, little-endian: magic; run, number u64, digest 2 x u64, block count u64; the blocks; XXH3-128 of all
// before. Text: length u32, bytes. Block: name count u32, names; rank u32, rank x (start u64, size u64);
// dense u8; position count u64, positions u32 each; bit bytes u64, bits.
constexpr std::string_view kMagic = "DWJRNL0\n";
constexpr uint64_t kHashBytes = 16;

void AppendText(std::string_view text, Bytes& out) {
  AppendLe(static_cast<uint32_t>(text.size()), out);
  out.insert(out.end(), text.begin(), text.end());
}

// Reads of a span whose hash has been checked: lengths are ours, the checks keep a bug from reading outside.
class Cursor {
 public:
  explicit Cursor(ByteSpan bytes) : rest_(bytes) {}
  template <class T>
  T Number() {
    const ByteSpan bytes = Take(sizeof(T));
    return bytes.size() == sizeof(T) ? LoadLe<T>(bytes.data()) : T{};
  }
  ByteSpan Take(uint64_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const ByteSpan out = rest_.first(count);
    rest_ = rest_.subspan(count);
    return out;
  }
  std::string Text() { return std::string(AsText(Take(Number<uint32_t>()))); }
  bool failed() const { return failed_; }
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  ByteSpan rest_;
  bool failed_ = false;
};

JournalHeader ReadHeader(Cursor& cursor) {
  JournalHeader header;
  header.run = cursor.Text();
  header.number = cursor.Number<uint64_t>();
  header.digest.lanes[0] = cursor.Number<uint64_t>();
  header.digest.lanes[1] = cursor.Number<uint64_t>();
  return header;
}

JournalBlock ReadBlock(Cursor& cursor) {
  JournalBlock block;
  const auto names = cursor.Number<uint32_t>();
  for (uint32_t i = 0; i < names && !cursor.failed(); ++i) block.names.push_back(cursor.Text());
  const auto rank = cursor.Number<uint32_t>();
  for (uint32_t d = 0; d < rank && !cursor.failed(); ++d) {
    block.box.start.push_back(cursor.Number<uint64_t>());
    block.box.size.push_back(cursor.Number<uint64_t>());
  }
  block.dense = cursor.Number<uint8_t>() != 0;
  const auto positions = cursor.Number<uint64_t>();
  const ByteSpan raw = cursor.Take(positions > kMaxBlockElements ? UINT64_MAX : positions * 4);
  block.positions.resize(raw.size() / 4);
  if (!raw.empty()) std::memcpy(block.positions.data(), raw.data(), raw.size());
  const ByteSpan bits = cursor.Take(cursor.Number<uint64_t>());
  block.bits.assign(bits.begin(), bits.end());
  return block;
}

}  // namespace

Status WriteJournal(const std::string& path, const CommitObserver::Write& write) {
  std::vector<Bytes> owned;
  std::vector<ByteSpan> pieces;
  Bytes head(kMagic.begin(), kMagic.end());
  AppendText(write.run, head);
  AppendLe(write.version.number, head);
  AppendLe(write.version.digest.lanes[0], head);
  AppendLe(write.version.digest.lanes[1], head);
  AppendLe(uint64_t{write.changes.size()}, head);
  owned.push_back(std::move(head));
  for (const auto& [place, change] : write.changes) {
    const auto& tensor = write.inventory.tensors[place.first];
    const Box& box = write.grid.boxes(place.first)[place.second];
    Bytes block;
    AppendLe(static_cast<uint32_t>(1 + tensor.aliases.size()), block);
    AppendText(tensor.name, block);
    for (const auto& alias : tensor.aliases) AppendText(alias, block);
    AppendLe(static_cast<uint32_t>(box.start.size()), block);
    for (size_t d = 0; d < box.start.size(); ++d) {
      AppendLe(box.start[d], block);
      AppendLe(box.size[d], block);
    }
    block.push_back(change.dense ? 1 : 0);
    AppendLe(uint64_t{change.positions.size()}, block);
    owned.push_back(std::move(block));
  }
  Xxh3Stream hash;
  const auto add = [&](ByteSpan piece) {
    hash.Update(piece);
    pieces.push_back(piece);
  };
  add(owned[0]);
  size_t next = 1;
  std::vector<Bytes> lengths(write.changes.size());
  for (const auto& [place, change] : write.changes) {
    const Bytes& bits = write.undo ? change.old_bits : change.new_bits;
    add(owned[next]);
    add({reinterpret_cast<const uint8_t*>(change.positions.data()), change.positions.size() * 4});
    AppendLe(uint64_t{bits.size()}, lengths[next - 1]);
    add(lengths[next - 1]);
    add(bits);
    ++next;
  }
  const Hash128 digest = hash.Finish();
  pieces.emplace_back(digest);
  return WriteFileDurably(path, pieces);
}

Result<std::optional<JournalHeader>> ReadJournal(const std::string& path,
                                                 const std::function<Status(const JournalBlock&)>& apply) {
  const auto file = MapFile(path, false);
  if (!file && file.error().code() == Code::kNotFound) return std::nullopt;
  if (!file) return Fail(file.error());
  const ByteSpan bytes((*file)->size_bytes() == 0 ? nullptr : static_cast<const uint8_t*>((*file)->handle()),
                       (*file)->size_bytes());
  const bool whole =
      bytes.size() >= kMagic.size() + kHashBytes && AsText(bytes.first(kMagic.size())) == kMagic;
  if (!whole || Xxh3_128(bytes.first(bytes.size() - kHashBytes)) != [&] {
        Hash128 stored;
        std::copy(bytes.end() - kHashBytes, bytes.end(), stored.begin());
        return stored;
      }()) {
    return Fail(Code::kCorrupt, "{} is not a complete journal", path);
  }
  Cursor cursor(bytes.subspan(kMagic.size(), bytes.size() - kMagic.size() - kHashBytes));
  const JournalHeader header = ReadHeader(cursor);
  const auto blocks = cursor.Number<uint64_t>();
  for (uint64_t i = 0; i < blocks && !cursor.failed(); ++i) {
    const JournalBlock block = ReadBlock(cursor);
    if (!cursor.failed()) DELTAWIRE_TRY(apply(block));
  }
  if (!cursor.done()) return Fail(Code::kInternal, "{} has a valid hash but not the journal's layout", path);
  return header;
}

}  // namespace deltawire::pubsub
