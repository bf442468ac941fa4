#pragma once
// From connected sockets to links: greetings checked, shared memory exchanged. Internal.

#include <vector>

#include "runtime/collective/cpu_communicator.h"
#include "runtime/collective/progress.h"

namespace troupe::collective {

// Room for a name and the zero behind it.
inline constexpr std::size_t kNameBytes = 64;

struct Formed {
  std::vector<Peer> peers;   // by rank
  memory::Segment segment;   // this rank's; invalid without local peers
  WaitSlot* slot = nullptr;  // in the segment
  UniqueFd wake_event;
};

Result<Formed> form_links(const CommunicatorOptions& options, std::vector<PeerLink> links);

}  // namespace troupe::collective
