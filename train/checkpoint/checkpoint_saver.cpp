#include "train/checkpoint/checkpoint_saver.h"

#include <deque>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/suggest.h"
#include "train/checkpoint/rank_exchange.h"
#include "train/checkpoint/save_job.h"
#include "train/checkpoint/save_plan.h"
#include "train/checkpoint/worker_thread.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {
namespace {

// What a rank without rank 0's file system sends at a time.
constexpr std::size_t kShipBytes = 1u << 20;

// What every rank tells at the start of a save.
struct StartFacts {
  std::int64_t valid = 1;
  std::int64_t step = 0;
  std::int64_t pieces_hash = 0;
  std::int64_t pieces_bytes = 0;  // of their encoding
  std::int64_t nonce = 0;         // rank 0's counts
  std::int64_t probe = 1;         // rank 0: the probe directory stands, or none is needed
  static constexpr std::size_t kCount = 6;
};
static_assert(sizeof(StartFacts) == StartFacts::kCount * sizeof(std::int64_t));

}  // namespace

class CheckpointSaver::Implementation {
 public:
  Implementation(FileSystem& files, collective::Communicator& communicator, const Clock& clock,
                 SaverOptions options, Logger log)
      : files_(files),
        communicator_(communicator),
        clock_(clock),
        options_(std::move(options)),
        log_(std::move(log)),
        rank_(communicator.rank()),
        world_(static_cast<std::size_t>(communicator.world_size())) {}

  ~Implementation() { give_up(); }

  Status start(SaveContents contents, SaveTarget target);
  bool started() const { return job_ != nullptr; }
  Result<SealReport> seal();
  Result<SealReport> finish_writing(std::vector<std::vector<std::uint64_t>>& hashes);
  std::optional<Result<WrittenCheckpoint>> poll();
  Status wait(Deadline deadline);
  Status save_model(SaveContents contents);

 private:
  bool is_root() const { return rank_ == 0; }
  Result<std::vector<StartFacts>> exchange_facts(const StartFacts& mine);
  Result<std::shared_ptr<const SavePlan>> make_plan(const RankPieces& pieces,
                                                    const std::string& encoded,
                                                    const std::vector<StartFacts>& facts,
                                                    SaveTarget target);
  std::string probe_path(std::int64_t nonce) const;
  Status look_for_probe(const std::vector<StartFacts>& facts);
  // Sends the pieces of ranks that do not see rank 0's directory to rank 0, which writes them.
  Status ship();
  Status ship_rank(std::size_t rank, PlannedFileWriter* writer, std::vector<std::byte>& buffer);
  // Without a word to other ranks: stops the writing and removes what it left.
  void give_up();
  void post_drop();
  // For calls in which other ranks may come later by as much as the disk may take.
  Deadline disk_deadline() const {
    return Deadline::after(options_.write_timeout + communicator_.default_timeout());
  }

  FileSystem& files_;
  collective::Communicator& communicator_;
  const Clock& clock_;
  const SaverOptions options_;
  Logger log_;
  const int rank_;
  const std::size_t world_;

  std::int64_t save_count_ = 0;
  // Of the last plan: every rank's hash of pieces.
  std::vector<std::int64_t> plan_hashes_;
  std::shared_ptr<const SavePlan> plan_;
  // Which ranks see rank 0's output directory; empty: not known yet.
  std::vector<bool> sees_;
  std::shared_ptr<SaveJob> job_;
  std::optional<WriteBuffer> buffer_;  // the worker's, since the first save
  // Rank 0: what became of the pieces that other ranks sent.
  Status shipped_outcome_;
  std::vector<std::vector<std::uint64_t>> shipped_hashes_;

  Mutex mutex_;
  std::deque<Result<WrittenCheckpoint>> results_ TROUPE_GUARDED_BY(mutex_);
  WorkerThread worker_;  // last: its tasks use all of the above
};

// --- start

Result<std::vector<StartFacts>> CheckpointSaver::Implementation::exchange_facts(
    const StartFacts& mine) {
  const std::span<const std::int64_t> numbers(&mine.valid, StartFacts::kCount);
  const auto all = TROUPE_TRY(exchange_numbers(
      communicator_, numbers, std::vector<std::size_t>(world_, StartFacts::kCount)));
  std::vector<StartFacts> facts(world_);
  for (std::size_t rank = 0; rank < world_; ++rank) {
    const auto* from = &all[rank * StartFacts::kCount];
    facts[rank] = {from[0], from[1], from[2], from[3], from[4], from[5]};
  }
  return facts;
}

Result<std::shared_ptr<const SavePlan>> CheckpointSaver::Implementation::make_plan(
    const RankPieces& pieces, const std::string& encoded, const std::vector<StartFacts>& facts,
    SaveTarget target) {
  std::vector<std::int64_t> hashes;
  for (const auto& fact : facts) hashes.push_back(fact.pieces_hash);
  const bool checkpoint = target == SaveTarget::kCheckpoint;
  if (checkpoint && plan_ && hashes == plan_hashes_) return plan_;
  std::vector<std::size_t> sizes;
  for (const auto& fact : facts) sizes.push_back(static_cast<std::size_t>(fact.pieces_bytes));
  const auto texts = TROUPE_TRY(exchange_texts(communicator_, encoded, sizes));
  std::vector<RankPieces> all;
  for (std::size_t rank = 0; rank < world_; ++rank) {
    all.push_back(static_cast<int>(rank) == rank_ ? pieces
                                                  : TROUPE_TRY(decode_pieces(texts[rank])));
  }
  auto plan = std::make_shared<const SavePlan>(TROUPE_TRY(make_save_plan(
      all, checkpoint ? options_.layout : CheckpointLayout::kHf, options_.shard_bytes_max)));
  if (checkpoint) {
    plan_ = plan;
    plan_hashes_ = std::move(hashes);
  }
  return plan;
}

// A directory under a name that the next writer clears.
std::string CheckpointSaver::Implementation::probe_path(std::int64_t nonce) const {
  return CheckpointTransaction::path_of(options_.output_dir, 0, fmt::format("-probe-{}", nonce));
}

Status CheckpointSaver::Implementation::look_for_probe(const std::vector<StartFacts>& facts) {
  if (!sees_.empty() || !facts[0].probe) return {};
  const std::int64_t mine = is_root() || files_.exists(probe_path(facts[0].nonce));
  const auto seen =
      TROUPE_TRY(exchange_numbers(communicator_, {&mine, 1}, std::vector<std::size_t>(world_, 1)));
  sees_.assign(seen.begin(), seen.end());
  std::vector<std::size_t> blind;
  for (std::size_t rank = 0; rank < world_; ++rank) {
    if (!sees_[rank]) blind.push_back(rank);
  }
  if (is_root() && !blind.empty()) {
    log_.info(
        "{} is not the same directory on the nodes of rank{} {}: rank 0 writes for them, "
        "which takes longer",
        options_.output_dir, blind.size() == 1 ? "" : "s", join_numbers(blind));
  }
  return {};
}

Status CheckpointSaver::Implementation::start(SaveContents contents, SaveTarget target) {
  TROUPE_CHECK(!job_, "a save is started already");
  if (target == SaveTarget::kModel) contents.optimizer.clear();
  StartFacts mine;
  const auto pieces = describe_pieces(contents.weights, contents.optimizer);
  Status valid = pieces.ok() && contents.step < 0
                     ? error(Code::kInvalidArgument, "there is no step {}", contents.step)
                     : pieces.status();
  const std::string encoded = pieces.ok() ? encode_pieces(*pieces) : std::string();
  mine.valid = valid.ok();
  mine.step = contents.step;
  mine.pieces_hash = static_cast<std::int64_t>(xxh3_64(bytes_of(encoded)));
  mine.pieces_bytes = static_cast<std::int64_t>(encoded.size());
  mine.nonce = clock_.unix_time_us();
  Status probe;
  if (is_root() && sees_.empty() && world_ > 1) {
    probe = files_.create_directories(probe_path(mine.nonce));
    mine.probe = probe.ok();
  }
  const auto facts = TROUPE_TRY(exchange_facts(mine));
  for (std::size_t rank = 0; rank < world_; ++rank) {
    if (!facts[rank].valid) {
      TROUPE_RETURN_IF_ERROR(exchange_failure(communicator_, valid));
      return valid;
    }
    if (facts[rank].step != facts[0].step) {
      return error(Code::kInvalidArgument, "rank {} saves step {}, rank 0 step {}", rank,
                   facts[rank].step, facts[0].step);
    }
  }
  auto plan = TROUPE_TRY(make_plan(*pieces, encoded, facts, target));
  TROUPE_RETURN_IF_ERROR(look_for_probe(facts));
  const std::string suffix = fmt::format("{}-{}-{}", target == SaveTarget::kModel ? "-model" : "",
                                         facts[0].nonce, ++save_count_);
  job_ = std::make_shared<SaveJob>(files_, clock_, options_, target, suffix, rank_,
                                   std::move(contents), std::move(plan));
  const bool writes = sees_.empty() || sees_[static_cast<std::size_t>(rank_)];
  if (!buffer_) buffer_.emplace();
  worker_.post([this, job = job_, writes] { job->write(writes, *buffer_); });
  Status shipped = ship();
  if (!shipped) give_up();
  return shipped;
}

Status CheckpointSaver::Implementation::ship() {
  shipped_outcome_ = {};
  shipped_hashes_.assign(world_, {});
  std::optional<WriteBuffer> memory;  // the worker uses its own meanwhile
  std::optional<PlannedFileWriter> writer;
  std::vector<std::byte> buffer;
  for (std::size_t rank = 0; rank < sees_.size(); ++rank) {
    if (sees_[rank]) continue;
    if (is_root() && !writer) {
      writer.emplace(job_->make_writer(memory.emplace()));
      shipped_outcome_ = job_->create_directory();
    }
    TROUPE_RETURN_IF_ERROR(ship_rank(rank, writer ? &*writer : nullptr, buffer));
  }
  if (writer && shipped_outcome_.ok()) shipped_outcome_ = writer->close();
  if (!shipped_outcome_.ok()) {
    shipped_outcome_ = shipped_outcome_.prefixed("writing what other ranks sent");
  }
  return {};
}

Status CheckpointSaver::Implementation::ship_rank(std::size_t rank, PlannedFileWriter* writer,
                                                  std::vector<std::byte>& buffer) {
  const SavePlan& plan = job_->plan();
  const RankPlan& theirs = plan.ranks[rank];
  const bool sends = static_cast<int>(rank) == rank_;
  // After a failure what still comes is received and thrown away: the ranks stay in step.
  const auto attempt = [&](auto&& work) {
    if (is_root() && shipped_outcome_.ok()) shipped_outcome_ = work();
  };
  for (const auto& part : theirs.parts) {
    attempt([&] { return writer->begin(part); });
    for (std::size_t i = 0; i < part.segment_count; ++i) {
      const auto& segment = theirs.segments[part.first_segment + i];
      if (segment.piece == PlannedSegment::kHeader) {
        const auto header = bytes_of(plan.files[part.file].header);
        attempt([&] { return writer->append(header.subspan(segment.offset, segment.size_bytes)); });
        continue;
      }
      const auto source =
          sends ? job_->bytes_of_segment(part, segment) : std::span<const std::byte>();
      for (std::uint64_t done = 0; done < segment.size_bytes;) {
        const auto size = std::min<std::uint64_t>(kShipBytes, segment.size_bytes - done);
        std::vector<std::size_t> counts(world_, 0);
        counts[rank] = size;
        buffer.resize(is_root() ? size : 0);
        TROUPE_RETURN_IF_ERROR(
            communicator_.gather(sends ? source.subspan(done, size) : std::span<const std::byte>(),
                                 std::span<std::byte>(buffer), counts, 0, disk_deadline()));
        attempt([&] { return writer->append(buffer); });
        done += size;
      }
    }
    attempt([&]() -> Status {
      shipped_hashes_[rank].push_back(TROUPE_TRY(writer->finish()));
      return {};
    });
  }
  return {};
}

// --- seal

void CheckpointSaver::Implementation::post_drop() {
  if (is_root()) worker_.post([job = job_] { job->drop(); });
}

void CheckpointSaver::Implementation::give_up() {
  if (!job_) return;
  job_->cancel();
  post_drop();
  static_cast<void>(worker_.wait_idle(Deadline::after(options_.write_timeout)));
  job_.reset();
}

// Ends the writing on all ranks. Where the report's outcome is ok, job_ is complete, and `hashes`
// has those of every rank; otherwise it was dropped.
Result<SealReport> CheckpointSaver::Implementation::finish_writing(
    std::vector<std::vector<std::uint64_t>>& hashes) {
  TROUPE_CHECK(job_, "no save is started");
  const auto begin = clock_.now();
  const bool done = worker_.wait_idle(Deadline::after(options_.write_timeout));
  SealReport report;
  report.step = job_->step();
  report.stall_seconds = std::chrono::duration<double>(clock_.now() - begin).count();
  if (done) {
    report.outcome = job_->outcome();
    report.write_seconds = job_->write_seconds();
  } else {
    job_->cancel();
    report.outcome =
        error(Code::kDeadlineExceeded, "the disk did not take the state within {} s",
              std::chrono::duration_cast<std::chrono::seconds>(options_.write_timeout).count());
  }
  if (report.outcome.ok()) report.outcome = shipped_outcome_;
  const auto& plan = job_->plan();
  const auto writes = [&](std::size_t rank) { return sees_.empty() || sees_[rank]; };
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < world_; ++rank) {
    counts.push_back(1 + (writes(rank) ? plan.ranks[rank].parts.size() : 0));
  }
  const auto me = static_cast<std::size_t>(rank_);
  std::vector<std::int64_t> mine{!report.outcome.ok()};
  if (report.outcome.ok()) {
    for (const auto hash : job_->hashes()) mine.push_back(static_cast<std::int64_t>(hash));
    report.bytes_written = writes(me) ? plan.ranks[me].size_bytes() : 0;
  }
  mine.resize(counts[me]);
  const auto all = exchange_numbers(communicator_, mine, counts, disk_deadline());
  if (!all) {
    give_up();
    return all.status();
  }
  hashes.assign(world_, {});
  bool failed = false;
  auto next = all->begin();
  for (std::size_t rank = 0; rank < world_; ++rank) {
    failed = failed || *next != 0;
    const auto end = next + static_cast<std::ptrdiff_t>(counts[rank]);
    hashes[rank] = writes(rank) ? std::vector<std::uint64_t>(next + 1, end) : shipped_hashes_[rank];
    next = end;
  }
  if (!failed) return report;
  Status told = exchange_failure(communicator_, report.outcome);
  job_->cancel();
  post_drop();
  job_.reset();
  if (!told) return told;
  return report;
}

Result<SealReport> CheckpointSaver::Implementation::seal() {
  std::vector<std::vector<std::uint64_t>> hashes;
  const auto report = TROUPE_TRY(finish_writing(hashes));
  if (!report.outcome.ok()) return report;
  if (is_root()) {
    worker_.post([this, job = job_, hashes = std::move(hashes)] {
      auto written = job->commit(hashes, log_);
      const MutexLock lock(mutex_);
      results_.push_back(std::move(written));
    });
  }
  job_.reset();
  return report;
}

std::optional<Result<WrittenCheckpoint>> CheckpointSaver::Implementation::poll() {
  const MutexLock lock(mutex_);
  if (results_.empty()) return std::nullopt;
  auto result = std::move(results_.front());
  results_.pop_front();
  return result;
}

Status CheckpointSaver::Implementation::wait(Deadline deadline) {
  if (worker_.wait_idle(deadline)) return {};
  return error(Code::kDeadlineExceeded, "a checkpoint of {} is still being written",
               options_.output_dir);
}

Status CheckpointSaver::Implementation::save_model(SaveContents contents) {
  TROUPE_RETURN_IF_ERROR(start(std::move(contents), SaveTarget::kModel));
  std::vector<std::vector<std::uint64_t>> hashes;
  const auto report = TROUPE_TRY(finish_writing(hashes));
  if (!report.outcome.ok()) return report.outcome;
  auto placed = std::make_shared<Status>();
  if (is_root()) worker_.post([job = job_, placed] { *placed = job->place_model(); });
  Status outcome = wait(Deadline::after(options_.write_timeout));
  if (outcome.ok()) outcome = *placed;
  const std::int64_t failed_here = !outcome.ok();
  // Rank 0 places files meanwhile.
  const auto failed = exchange_numbers(communicator_, {&failed_here, 1},
                                       std::vector<std::size_t>(world_, 1), disk_deadline());
  if (!outcome.ok()) post_drop();
  job_.reset();
  if (!failed) return failed.status();
  for (const auto one : *failed) {
    if (one == 0) continue;
    TROUPE_RETURN_IF_ERROR(exchange_failure(communicator_, outcome));
    return outcome;
  }
  return {};
}

// --- the interface

CheckpointSaver::CheckpointSaver(FileSystem& files, collective::Communicator& communicator,
                                 const Clock& clock, SaverOptions options, Logger log)
    : implementation_(std::make_unique<Implementation>(files, communicator, clock,
                                                       std::move(options), std::move(log))) {}
CheckpointSaver::~CheckpointSaver() = default;

Status CheckpointSaver::start(SaveContents contents) {
  return implementation_->start(std::move(contents), SaveTarget::kCheckpoint);
}
bool CheckpointSaver::started() const { return implementation_->started(); }
Result<SealReport> CheckpointSaver::seal() { return implementation_->seal(); }
std::optional<Result<WrittenCheckpoint>> CheckpointSaver::poll() { return implementation_->poll(); }
Status CheckpointSaver::wait(Deadline deadline) { return implementation_->wait(deadline); }
Status CheckpointSaver::save_model(SaveContents contents) {
  return implementation_->save_model(std::move(contents));
}

}  // namespace troupe::train
