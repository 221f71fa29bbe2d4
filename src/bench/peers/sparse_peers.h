// Methods that list the changed elements (peer.h has the table).
#pragma once

#include <memory>

#include "bench/peers/peer.h"

namespace deltawire::bench {

std::unique_ptr<Peer> RawPeer();
std::unique_ptr<Peer> GapPeer();
// xor_values: old ^ new in place of the new values.
std::unique_ptr<Peer> GapZstdPeer(bool xor_values);
std::unique_ptr<Peer> CooZstdPeer();

}  // namespace deltawire::bench
