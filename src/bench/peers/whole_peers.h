// Methods that look at every byte of a tensor (peer.h has the table).
#pragma once

#include <memory>

#include "bench/peers/peer.h"

namespace deltawire::bench {

std::unique_ptr<Peer> FullXorZstdPeer();
std::unique_ptr<Peer> OverwriteZstdPeer();
std::unique_ptr<Peer> WholePeer();
std::unique_ptr<Peer> WholeZstdPeer();
std::unique_ptr<Peer> PatchFromPeer();

}  // namespace deltawire::bench
