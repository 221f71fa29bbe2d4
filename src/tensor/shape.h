// Shapes, boxes and the block grid: where the elements of a canonical tensor are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltawire {

// Extents, outermost first. Empty = a scalar: one element. Any extent may be 0.
using Shape = std::vector<uint64_t>;

// Product of the extents; nullopt when it overflows 64 bits (even beside an extent of 0).
std::optional<uint64_t> ElementCount(const Shape& shape);
// "[576, 1536]".
std::string ShapeText(const Shape& shape);
// Row-major strides in elements.
std::vector<int64_t> RowMajorStrides(const Shape& shape);

// An axis-aligned part of a tensor: [start, start + size) in each dimension. Both have the tensor's rank.
struct Box {
  std::vector<uint64_t> start;
  std::vector<uint64_t> size;

  friend bool operator==(const Box&, const Box&) = default;
};

Box WholeBox(const Shape& shape);
// Elements of the box; its extents come from a valid shape, so this can't overflow.
uint64_t ElementCount(const Box& box);
// "[0:64, 0:576]".
std::string BoxText(const Box& box);
// True when box lies inside shape and has its rank.
bool BoxInside(const Box& box, const Shape& shape);

// Row-major position of the box's first element in the tensor, if its elements follow each other there (as
// those of every block of DefaultGrid do); nullopt if not. The box lies inside shape.
std::optional<uint64_t> RunStart(const Box& box, const Shape& shape);

// Elements a block holds at most. Positions inside a block fit 21 bits.
inline constexpr uint64_t kMaxBlockElements = uint64_t{1} << 21;
// Pieces of a grid at most.
inline constexpr uint32_t kMaxGridPieces = 65536;

// How a canonical tensor is cut into blocks. The inventory stores it, so that writers and readers agree
// without knowing why: `axis` is cut into `pieces` runs of ceil(extent / pieces) (the last may be shorter);
// a piece above kMaxBlockElements is cut again along axis 0 into as many rows as fit, and where a single row
// is still too long, that row along axis 1, and so on.
struct Grid {
  uint32_t axis = 0;
  uint32_t pieces = 1;

  friend bool operator==(const Grid&, const Grid&) = default;
};

// One block where the tensor fits one; otherwise axis 0 cut in the least power of two of pieces that do. So
// the shards of each tensor-parallel degree that is a power of two, and at most the number of pieces, are
// whole blocks: of degree 8 from 2^23 elements on. A smaller tensor's blocks would cost more than what they
// say.
Grid DefaultGrid(const Shape& shape);
// The blocks of a grid, piece by piece. Every element is in exactly one; a tensor without elements has none.
// nullopt when grid does not fit the shape (axis out of range, pieces 0 or above the extent) or the shape
// overflows.
std::optional<std::vector<Box>> GridBlocks(const Shape& shape, const Grid& grid);

}  // namespace deltawire
