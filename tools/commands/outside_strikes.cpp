#include "tools/commands/outside_strikes.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/base/signal_block.h"
#include "train/report/step_log.h"

namespace troupe::tools {
namespace {

using train::FaultKind;

constexpr auto kBesideTick = std::chrono::milliseconds(5);
// A slow process runs this long in each turn, and is stopped factor − 1 times as long.
constexpr auto kSlowTurn = std::chrono::milliseconds(10);

chaos::ProcessRole role_struck_by(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillKeeper:
      return chaos::ProcessRole::kKeeper;
    case FaultKind::kKillDaemon:
      return chaos::ProcessRole::kDaemon;
    case FaultKind::kKillHead:
      return chaos::ProcessRole::kHead;
    case FaultKind::kKillController:
      return chaos::ProcessRole::kController;
    default:
      return chaos::ProcessRole::kTrainer;
  }
}

std::string_view role_text(chaos::ProcessRole role) {
  constexpr std::string_view kTexts[] = {"a process", "a trainer",       "the controller",
                                         "a keeper",  "a node's daemon", "the head"};
  return kTexts[static_cast<int>(role)];
}

// -1: there is no such file.
std::int64_t mtime_ns_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return -1;
  return static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

StepsSeen::StepsSeen(const std::string& output_dir)
    : path_(join_path(output_dir, train::kStepsFile)), old_mtime_ns_(mtime_ns_of(path_)) {}

std::int64_t StepsSeen::under_way() {
  const auto mtime_ns = mtime_ns_of(path_);
  if (mtime_ns < 0 || mtime_ns == old_mtime_ns_) return 0;
  old_mtime_ns_ = -1;
  std::ifstream in(path_, std::ios::binary | std::ios::ate);
  if (!in) return 0;
  const auto size = static_cast<std::int64_t>(in.tellg());
  // Cut back to an earlier step: by a new run, or a recovery from a checkpoint.
  if (size < offset_) offset_ = lines_ = 0;
  in.seekg(offset_);
  std::string more(static_cast<std::size_t>(size - offset_), '\0');
  in.read(more.data(), static_cast<std::streamsize>(more.size()));
  more.resize(static_cast<std::size_t>(in.gcount()));
  offset_ += static_cast<std::int64_t>(more.size());
  lines_ += std::count(more.begin(), more.end(), '\n');
  return lines_ + 1;
}

json::Object to_json(const OutsideStrike& strike) {
  return {{"at_s", strike.at_s}, {"fault", strike.fault}, {"target", strike.target}};
}

OutsideStrikes::OutsideStrikes(const std::vector<train::Fault>& faults, std::uint64_t seed,
                               std::string mark, ChaosCluster* cluster, const Clock& clock)
    : faults_(faults),
      schedule_(faults, seed),
      random_(seed),
      mark_(std::move(mark)),
      cluster_(cluster),
      clock_(clock) {}

OutsideStrikes::~OutsideStrikes() { end_lasting(TimePoint::max()); }

void OutsideStrikes::tick(std::int64_t step) {
  const TimePoint now = clock_.now();
  end_lasting(now);
  if (step <= 0) return;
  // Step 1 stands when step 2 is under way.
  if (!first_step_at_ && step >= 2) first_step_at_ = now;
  const double elapsed =
      first_step_at_ ? std::chrono::duration<double>(now - *first_step_at_).count() : 0;
  for (const auto index : schedule_.due(elapsed, step)) strike(faults_[index], elapsed);
}

void OutsideStrikes::strike(const train::Fault& fault, double at_s) {
  const bool link = fault.kind == FaultKind::kCut || fault.kind == FaultKind::kDelay ||
                    fault.kind == FaultKind::kStall;
  const bool node = fault.kind == FaultKind::kKillNode || fault.kind == FaultKind::kLeaveNode ||
                    fault.kind == FaultKind::kJoinNode;
  strikes_.push_back({.at_s = at_s,
                      .fault = train::fault_text(fault),
                      .target = link   ? strike_link(fault)
                                : node ? strike_node(fault)
                                       : strike_process(fault),
                      .of_cluster = node || fault.kind == FaultKind::kKillHead ||
                                    fault.kind == FaultKind::kKillDaemon,
                      .unix_time_us = clock_.unix_time_us()});
}

std::vector<std::string> OutsideStrikes::struck() const {
  std::vector<std::string> out;
  for (const OutsideStrike& strike : strikes_) {
    if (!strike.target.empty()) out.push_back(strike.fault);
  }
  return out;
}

std::optional<chaos::MarkedProcess> OutsideStrikes::victim_of(const train::Fault& fault) {
  auto processes = chaos::marked_processes(mark_);
  std::erase_if(processes, [&](const chaos::MarkedProcess& p) {
    return p.role != role_struck_by(fault.kind) || p.state == 'Z' ||
           (p.role == chaos::ProcessRole::kTrainer && fault.rank >= 0 && p.rank != fault.rank) ||
           (fault.node >= 0 && p.node != fault.node);
  });
  if (processes.empty()) return std::nullopt;
  return processes[random_.below(processes.size())];
}

std::string OutsideStrikes::strike_process(const train::Fault& fault) {
  const auto victim = victim_of(fault);
  if (!victim) return "";
  const std::string target =
      victim->role == chaos::ProcessRole::kTrainer
          ? fmt::format("rank {}, process {}", victim->rank, victim->pid)
          : fmt::format("{}{}, process {}", role_text(victim->role),
                        victim->node >= 0 ? fmt::format(" of node {}", victim->node) : "",
                        victim->pid);
  if (fault.kind == FaultKind::kSlow) {
    lasting_.push_back({.until = clock_.now() + std::chrono::milliseconds(fault.for_ms),
                        .pid = victim->pid,
                        .factor = fault.factor});
    return target;
  }
  const int signal = fault.kind == FaultKind::kStop ? SIGSTOP : SIGKILL;
  // It ran a moment ago; that its number is another one's by now is as likely as with kill(1).
  return ::kill(victim->pid, signal) == 0 ? target : "";
}

std::string OutsideStrikes::strike_link(const train::Fault& fault) {
  if (!cluster_) return "";
  const int node = static_cast<int>(fault.node);
  const std::string target =
      node < 0 ? "all connections between nodes" : fmt::format("the connections to node {}", node);
  if (fault.kind == FaultKind::kCut) {
    cluster_->cut(node);
    return target;
  }
  LinkConditions link;
  if (fault.kind == FaultKind::kStall) {
    link.stalled = true;
  } else {
    link.delay = std::chrono::milliseconds(fault.delay_ms);
    link.jitter = std::chrono::milliseconds(fault.jitter_ms);
  }
  cluster_->set_link(node, link);
  lasting_.push_back(
      {.until = clock_.now() + std::chrono::milliseconds(fault.for_ms), .node = node});
  return target;
}

std::string OutsideStrikes::strike_node(const train::Fault& fault) {
  if (!cluster_) return "";
  const bool joins = fault.kind == FaultKind::kJoinNode;
  std::vector<int> nodes;
  for (int node = 0; node < cluster_->node_count(); ++node) {
    if (cluster_->is_up(node) != joins && (fault.node < 0 || fault.node == node))
      nodes.push_back(node);
  }
  if (nodes.empty()) return "";
  const int node = nodes[random_.below(nodes.size())];
  const Status struck = joins                                 ? cluster_->join(node)
                        : fault.kind == FaultKind::kLeaveNode ? cluster_->leave(node)
                                                              : cluster_->kill_node(node);
  return struck.ok() ? fmt::format("node {}", node) : "";
}

void OutsideStrikes::end_lasting(TimePoint now) {
  for (Lasting& lasting : lasting_) {
    const bool over = now >= lasting.until;
    if (lasting.pid < 0) {
      if (over) cluster_->set_link(lasting.node, {});
      continue;
    }
    const auto period = std::chrono::duration_cast<Duration>(kSlowTurn * lasting.factor);
    const bool stop = !over && now.time_since_epoch() % period >= kSlowTurn;
    if (stop != lasting.stopped) ::kill(lasting.pid, stop ? SIGSTOP : SIGCONT);
    lasting.stopped = stop;
  }
  std::erase_if(lasting_, [&](const Lasting& lasting) { return now >= lasting.until; });
}

Result<std::unique_ptr<StrikesBeside>> StrikesBeside::start(const std::vector<train::Fault>& faults,
                                                            const std::string& output_dir) {
  bool any = false;
  for (const auto& fault : faults) {
    any = any || !train::strikes_at_point(fault);
    if (!train::needs_cluster(fault)) continue;
    return error(Code::kInvalidArgument,
                 "troupe.chaos: {} strikes parts that only a cluster of processes has; use troupe "
                 "chaos run, which brings one up",
                 train::fault_text(fault));
  }
  if (!any) return std::unique_ptr<StrikesBeside>();
  std::string mark = fmt::format("train-{}", ::getpid());
  ::setenv(chaos::kChaosMark, mark.c_str(), 1);
  return std::unique_ptr<StrikesBeside>(new StrikesBeside(faults, output_dir, std::move(mark)));
}

StrikesBeside::StrikesBeside(std::vector<train::Fault> faults, const std::string& output_dir,
                             std::string mark)
    : faults_(std::move(faults)),
      steps_(output_dir),
      strikes_(faults_, 1, std::move(mark), nullptr, clock_) {
  const SignalBlock block;  // the main thread waits for them
  thread_ = std::thread([this] {
    while (!ending_) {
      strikes_.tick(steps_.under_way());
      std::this_thread::sleep_for(kBesideTick);
    }
  });
}

StrikesBeside::~StrikesBeside() { static_cast<void>(struck()); }

std::vector<std::string> StrikesBeside::struck() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  return strikes_.struck();
}

}  // namespace troupe::tools
