#pragma once
// Faults that a run is struck by on purpose: the text of `troupe.chaos` and `--chaos`, and the
// entries of a scenario (scenario.h).
//
//   fault@key=value,key=value;fault@…      kill@step=40,rank=1,phase=forward
//
// | fault | what it does |
// | --- | --- |
// | kill | SIGKILL of a trainer |
// | stop | SIGSTOP of a trainer |
// | exit | a trainer's process ends with `code` (1) |
// | exception | an exception that nobody catches |
// | slow | computing takes `factor` (4) times as long, for `steps` (1) |
// | nan | the first element of a unit's gradient becomes NaN |
// | disk_full | the file operation and all that need room for `for_ms` (1000) find no space |
// | fail_write | a write fails with an I/O error |
// | torn_write | half of a write reaches the file, then the process is killed, or `then`=fail |
// | fail_fsync | a sync fails with an I/O error |
// | cut | connections through the proxy of a worker node (`node`, from 0; all) are reset |
// | delay | bytes through it are `delay_ms` (20) ± `jitter_ms` (0) late, for `for_ms` (1000) |
// | stall | nothing passes through it, for `for_ms` (1000) |
// | kill_keeper, kill_daemon | SIGKILL of a worker node's process; `node` counts from 0 |
// | kill_head, kill_controller | SIGKILL of those |
// | kill_node | SIGKILL of all processes of a worker node at once, with the memory that they keep |
// | leave_node | SIGTERM to a worker node, which drains itself |
// | join_node | a worker node in the place of one that was killed or left (`node`; any) |
//
// Where, for faults that strike at a point of a trainer: `step`, `rank` (0; or any), `phase` (a
// stage of train/progress/point.h), `unit`, `point` (stage, unit, gradient, operator, collective,
// chunk, file), `operation` (a name), `number` (of a collective or chunk), of faults of files
// `file` (a part of the path), `hit` (1: the first matching point of a generation), `generation`
// (from 1; any), `times` (1: of a run; the controller remembers). A fault without `point` strikes
// where a stage begins (`phase` is forward then), or where a unit, an operation or a file is named,
// at those.
//
// When, for faults that strike from outside, by pid or in a proxy: `at` seconds after the first
// step, `every` so many seconds, or at random, `rate` times a minute on average (`seed`); or once
// `step` is under way. kill, stop and slow may strike that way too: their `rank` is any then, and
// `slow` lasts for `for_ms`. `times` is without end where they repeat.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/progress/point.h"

namespace troupe::train {

enum class FaultKind : std::uint8_t {
  kKill,
  kStop,
  kExit,
  kException,
  kSlow,
  kNan,
  kDiskFull,
  kFailWrite,
  kTornWrite,
  kFailFsync,
  kCut,
  kDelay,
  kStall,
  kKillKeeper,
  kKillDaemon,
  kKillHead,
  kKillController,
  kKillNode,
  kLeaveNode,
  kJoinNode,
  // No fault: every point that the rank reaches becomes a line of FILE.rank-R (point_lines.h).
  kRecord,
};
inline constexpr int kFaultKindCount = 21;
std::string_view fault_kind_name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  // Where. −1 (step: 0) and empty: any.
  std::int64_t step = 0;  // from 1, as steps are counted in logs
  std::int64_t rank = 0;
  std::optional<Stage> stage;
  std::int64_t unit = -1;
  std::optional<PointKind> point;  // always there for faults at points
  std::string operation;
  std::int64_t number = -1;
  std::int64_t hit = 1;
  std::int64_t generation = 0;  // 0: any
  std::int64_t times = 1;       // 0: without end, of faults on a schedule
  std::int64_t node = -1;       // worker node, from 0
  // When; at most one is not 0.
  double at_s = 0;
  double every_s = 0;
  double rate_per_min = 0;
  std::int64_t seed = 0;
  // What. Only those of its kind.
  std::int64_t code = 1;
  double factor = 4;
  std::int64_t steps = 1;
  std::int64_t for_ms = 1000;
  std::int64_t delay_ms = 20;
  std::int64_t jitter_ms = 0;
  bool then_fail = false;  // torn_write
  std::string file;        // of file faults: part of the path; of record: where to write
  friend bool operator==(const Fault&, const Fault&) = default;
};

// Whether the trainer strikes itself, at a point. Else somebody outside does.
bool strikes_at_point(const Fault& fault);
// Whether it needs worker nodes, a head and proxies of its own (a cluster that is not embedded).
bool needs_cluster(const Fault& fault);

// kInvalidArgument for a fault whose `rank` no rank of so many has: it would never strike.
Status check_ranks(const std::vector<Fault>& faults, std::int64_t world_size);
// The texts of the faults that struck nothing. `struck`: the texts of those that did, one for each
// strike.
std::vector<std::string> never_struck(const std::vector<Fault>& faults,
                                      const std::vector<std::string>& struck);

// An empty text is no fault. Errors name the piece: "'kill@step=x': step: 'x' is no whole number".
Result<std::vector<Fault>> parse_faults(std::string_view text);
// One fault from an object of the same keys, `fault` being its kind: {"fault": "kill", "step": 4}.
// Values may be numbers or texts.
Result<Fault> fault_from_json(const json::Value& value);
// The text that parses to the same faults.
std::string faults_text(const std::vector<Fault>& faults);
std::string fault_text(const Fault& fault);

}  // namespace troupe::train
