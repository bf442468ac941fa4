#include "troupe/actors.h"
#include "actors/client.h"
#include "troupe/raw_connection.h"

namespace troupe {

Result<Supervisor> Actors::supervise(const SupervisorOptions& options, Duration timeout) {
  return detail::Access::create<Supervisor>(TROUPE_TRY(usable()), options,
                                            Deadline::after(timeout));
}

Result<std::vector<NodeInfo>> Actors::nodes(Duration timeout) {
  return TROUPE_TRY(usable())->nodes(Deadline::after(timeout));
}

Result<RawConnection> Actors::connect_to(ActorId actor_id, const std::string& purpose,
                                         Deadline deadline) {
  return TROUPE_TRY(usable())->connect_to(actor_id, purpose, deadline);
}

}  // namespace troupe
