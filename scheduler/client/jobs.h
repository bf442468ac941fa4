#pragma once
// What tools ask the head about jobs. All wait; not on the loop's thread.

#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "scheduler/client/head_client.h"

namespace troupe::scheduler {

// Returns when the head has accepted or refused it, not when it runs. `driver.program` is what
// runs; the caller chooses driver.actor_id and driver.job_id.
Status submit_job(HeadClient& head, const std::string& name, wire::ActorSpec driver,
                  Deadline deadline);
// Returns when the head has told the program's node, not when it has ended. kNotFound;
// kFailedPrecondition for a driver that was not submitted.
Status stop_job(HeadClient& head, JobId job_id, Duration grace, const std::string& reason,
                Deadline deadline);
// Those that were submitted, oldest first, then drivers that connected by themselves.
Result<std::vector<wire::JobInfo>> list_jobs(HeadClient& head, bool include_ended,
                                             Deadline deadline);

// The nodes that are there and have the package, or some of them.
Result<std::vector<wire::Endpoint>> find_package(HeadClient& head, const wire::Package& package,
                                                 Deadline deadline);

}  // namespace troupe::scheduler
