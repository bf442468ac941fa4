#pragma once
// What the head tells, as JSON for scripts, and in words.

#include <map>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/wire/gpu.h"
#include "runtime/wire/types.h"

namespace troupe::tools {

// {"CPU":1.5,"memory":4294967296}
json::Object to_json(const wire::Resources& resources);
json::Object to_json(const wire::NodeInfo& node);
json::Object to_json(const wire::GpuStatus& gpu);
json::Object to_json(const wire::ActorInfo& actor);
json::Object to_json(const wire::EventRecord& event);
json::Object to_json(const wire::PlacementGroupInfo& group);
json::Object to_json(const wire::JobInfo& job);

// What of `total` is in use.
wire::Resources in_use(const wire::NodeInfo& node);
// Whether a word on the command line means what has this name and id: the name, or the id's first
// digits, at least so many.
bool is_meant(const std::string& word, const std::string& name, const std::string& id,
              std::size_t prefix_min = 4);
// "trainer-1", or the type where it has no name.
std::string display_name(const wire::ActorInfo& actor);

// "Counter"; "Counter[10000]" for a process of so many light actors.
std::string type_name(const wire::ActorInfo& actor);

// "name[0]" of the group and bundle that an actor runs in, or waits for; empty where it is in none.
// Unnamed groups, and those not among `groups`, by the id's first digits.
std::string bundle_name(const wire::ActorInfo& actor,
                        const std::vector<wire::PlacementGroupInfo>& groups);

// "shop"; the job's first digits where that is the job's own.
std::string namespace_label(const std::string& namespace_name);
// "group", or its first digits where it has no name; empty where nobody supervises the actor.
std::string supervisor_name(const wire::ActorInfo& actor,
                            const std::vector<wire::SupervisorInfo>& supervisors);
json::Object to_json(const wire::SupervisorInfo& supervisor);

// Nodes' names by id, for tables.
class NodeNames {
 public:
  explicit NodeNames(const std::vector<wire::NodeInfo>& nodes);
  // The name; the id's first digits where it is not known; empty for an empty id.
  std::string of(const NodeId& id) const;

 private:
  std::map<NodeId, std::string> names_;
};

}  // namespace troupe::tools
