#include "tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "base/bytes.h"

namespace deltawire {

std::optional<uint64_t> ElementCount(const Shape& shape) {
  uint64_t count = 1;
  bool empty = false;
  for (const uint64_t extent : shape) {
    if (extent == 0) {
      empty = true;
      continue;
    }
    const auto product = CheckedMul(count, extent);
    if (!product) return std::nullopt;
    count = *product;
  }
  return empty ? 0 : count;
}

std::string ShapeText(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<int64_t> RowMajorStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= static_cast<int64_t>(std::max<uint64_t>(shape[d], 1));
  }
  return strides;
}

Box WholeBox(const Shape& shape) { return {std::vector<uint64_t>(shape.size(), 0), shape}; }

uint64_t ElementCount(const Box& box) {
  uint64_t count = 1;
  for (const uint64_t size : box.size) count *= size;
  return count;
}

std::string BoxText(const Box& box) {
  std::string out = "[";
  for (size_t d = 0; d < box.size.size(); ++d) {
    out += fmt::format("{}{}:{}", d ? ", " : "", box.start[d], box.start[d] + box.size[d]);
  }
  return out + "]";
}

bool BoxInside(const Box& box, const Shape& shape) {
  if (box.start.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto end = CheckedAdd(box.start[d], box.size[d]);
    if (!end || *end > shape[d]) return false;
  }
  return true;
}

std::optional<uint64_t> RunStart(const Box& box, const Shape& shape) {
  uint64_t start = 0;
  bool cut = false;  // an outer dimension has more than one index: all inner ones must be whole
  for (size_t d = 0; d < shape.size(); ++d) {
    if (cut && box.size[d] != shape[d]) return std::nullopt;
    cut = cut || box.size[d] > 1;
    start = start * shape[d] + box.start[d];
  }
  return start;
}

Grid DefaultGrid(const Shape& shape) {
  const auto count = ElementCount(shape);
  if (!count || *count <= kMaxBlockElements || shape.empty()) return {};
  const uint64_t least = (*count + kMaxBlockElements - 1) / kMaxBlockElements;
  return {
      .axis = 0,
      .pieces = static_cast<uint32_t>(std::min<uint64_t>({std::bit_ceil(least), shape[0], kMaxGridPieces}))};
}

namespace {

// Cuts box along `axis` until each piece holds at most kMaxBlockElements, axis by axis from the outermost.
void CutToSize(const Box& box, size_t axis, std::vector<Box>& out) {
  const uint64_t count = ElementCount(box);
  if (count <= kMaxBlockElements) {
    out.push_back(box);
    return;
  }
  const uint64_t row = count / box.size[axis];
  const uint64_t rows = std::max<uint64_t>(1, kMaxBlockElements / row);
  for (uint64_t at = 0; at < box.size[axis]; at += rows) {
    Box piece = box;
    piece.start[axis] += at;
    piece.size[axis] = std::min(rows, box.size[axis] - at);
    CutToSize(piece, axis + 1, out);  // when one row is still too long, the next axis is cut
  }
}

}  // namespace

std::optional<std::vector<Box>> GridBlocks(const Shape& shape, const Grid& grid) {
  const auto count = ElementCount(shape);
  if (!count) return std::nullopt;
  if (shape.empty()) {
    if (grid != Grid{}) return std::nullopt;
    return std::vector<Box>{Box{}};
  }
  if (grid.axis >= shape.size() || grid.pieces == 0) return std::nullopt;
  if (grid.pieces > std::max<uint64_t>(1, shape[grid.axis])) return std::nullopt;
  std::vector<Box> blocks;
  if (*count == 0) return blocks;
  const uint64_t extent = shape[grid.axis];
  const uint64_t step = (extent + grid.pieces - 1) / grid.pieces;
  for (uint64_t at = 0; at < extent; at += step) {
    Box piece = WholeBox(shape);
    piece.start[grid.axis] = at;
    piece.size[grid.axis] = std::min(step, extent - at);
    CutToSize(piece, 0, blocks);
  }
  return blocks;
}

}  // namespace deltawire
