#include "bench/peers/peer.h"

#include "bench/peers/sparse_peers.h"
#include "bench/peers/whole_peers.h"

namespace deltawire::bench {

std::vector<std::unique_ptr<Peer>> AllPeers() {
  std::vector<std::unique_ptr<Peer>> peers;
  peers.push_back(RawPeer());
  peers.push_back(GapPeer());
  peers.push_back(GapZstdPeer(true));
  peers.push_back(GapZstdPeer(false));
  peers.push_back(CooZstdPeer());
  peers.push_back(FullXorZstdPeer());
  peers.push_back(OverwriteZstdPeer());
  peers.push_back(WholePeer());
  peers.push_back(WholeZstdPeer());
  peers.push_back(PatchFromPeer());
  return peers;
}

}  // namespace deltawire::bench
