#include "detect/small_set.h"

#include "base/bytes.h"
#include "kernels/element.h"

namespace deltawire::detect {
void SmallSet::Rebuild(const device::Block& block) { block.SelectSmall(positions_, bits_); }

ChangeLog SmallSet::Reconcile(const device::Block& block, const ChangeLog& step) {
  ChangeLog out;
  out.reserve(step.size() + positions_.size());
  std::vector<uint32_t> touched;  // members and flagged elements, ascending
  touched.reserve(step.size() + positions_.size());
  size_t member = 0;
  const auto take_member = [&] {
    touched.push_back(positions_[member]);
    out.emplace_back(positions_[member], bits_[member], Base::kCertified);
    ++member;
  };
  for (const LogEntry& entry : step) {
    while (member < positions_.size() && positions_[member] < entry.position) take_member();
    if (member < positions_.size() && positions_[member] == entry.position) {
      take_member();
    } else {
      touched.push_back(entry.position);
      out.push_back(entry);
    }
  }
  while (member < positions_.size()) take_member();

  std::vector<uint16_t> now(touched.size());
  block.Gather(touched, {reinterpret_cast<uint8_t*>(now.data()), now.size() * 2});
  positions_.clear();
  bits_.clear();
  size_t kept = 0;
  for (size_t i = 0; i < touched.size(); ++i) {
    if (kernels::InSetZ(now[i])) {
      positions_.push_back(touched[i]);
      bits_.push_back(now[i]);
    }
    if (out[i].base == Base::kCertified && out[i].bits == now[i]) continue;
    out[kept++] = out[i];
  }
  out.erase(out.begin() + static_cast<ptrdiff_t>(kept), out.end());
  return out;
}

}  // namespace deltawire::detect
