#pragma once
// Saving a state that lies in pieces on many ranks, while the next step computes.
//
//   saver.start(contents);              // step boundary: agrees on the files, returns at once
//   forward, backward                   // each rank's thread writes its pieces meanwhile
//   report = saver.seal();              // before parameters or the optimizer's slots change
//   optimizer step                      // rank 0's thread commits and rotates meanwhile
//   if (auto done = saver.poll()) …     // rank 0: what became of it
//
// Each rank writes its own bytes, straight from the live memory, through a buffer of a few MiB,
// hashing them on the way; nothing is copied as a whole. Everything goes into a temporary directory
// `tmp-checkpoint-N-…/`; the manifest comes last, a rename publishes (checkpoint_writer.h).
//
// Layouts
// - hf: `model.safetensors` (or shards and index beyond shard_bytes_max) as transformers opens it,
//   written by all ranks into their places of one file; the optimizer's slots beside it, each
//   rank's in `optimizer-0000R-of-0000N.safetensors`.
// - sharded: weights, too, in a file for each rank, `shard-0000R-model-0000R-of-0000N.safetensors`
//   (README: how far this is Hugging Face's form of torch's distributed checkpoints).
// With both: trainer_state.json and whatever else `files` has, scheduler.json, rng_state.json,
// cursor.json, troupe_checkpoint.json.
//
// Ranks that do not see rank 0's output_dir (no shared file system) are found at the first start():
// they ship their pieces to rank 0 through the communicator, inside start(), which then takes as
// long as sending and writing take.
//
// Threads: all calls from one thread per rank, the one that runs the communicator. The saver has
// one thread of its own.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/checkpoint/tensor_piece.h"
#include "train/checkpoint/weights.h"
#include "troupe/log.h"

namespace troupe::train {

struct SaverOptions {
  std::string output_dir;
  std::string run;  // the run's id, see CheckpointSearch::run
  CheckpointLayout layout = CheckpointLayout::kHf;
  // Newest checkpoints to keep; none: all.
  std::optional<int> save_total_limit;
  std::uint64_t shard_bytes_max = kShardBytesMax;
  // How long seal() and save_model() wait for the disk before they drop the save.
  Duration write_timeout = std::chrono::minutes(10);
};

// A rank's part of a save. Over all ranks every element of every tensor is given exactly once, with
// one dtype and shape per name; start() checks it.
struct SaveContents {
  std::int64_t step = 0;             // optimizer steps done; the same on all ranks
  std::vector<TensorPiece> weights;  // under their HF names
  // Under optimizer_tensor_name(). An optimizer may keep nothing.
  std::vector<TensorPiece> optimizer;
  // The rest counts on rank 0 alone.
  // false: weights only (save_only_model), without schedule and random state. No rank gives
  // `optimizer` then.
  bool has_optimizer = true;
  json::Value scheduler;
  json::Value rng_state;
  json::Value cursor;  // the sample cursor, opaque here
  // Name → content: config.json, tokenizer files, trainer_state.json, training_args.json.
  std::map<std::string, std::string> files;
  // Checkpoints that rotation must keep (the best model's).
  std::set<std::int64_t> protected_steps;
};

struct SealReport {
  std::int64_t step = 0;
  // ok: all bytes of all ranks are on disk, the commit follows. Otherwise the save was dropped on
  // all ranks: the same reason everywhere, naming the rank; earlier checkpoints are as they were.
  Status outcome;
  double stall_seconds = 0;         // this rank waited in seal() for its own writing
  double write_seconds = 0;         // its thread wrote, from start() on
  std::uint64_t bytes_written = 0;  // by it
};

class CheckpointSaver {
 public:
  // `files`, `communicator` and `clock` must outlive the saver. Touches nothing yet.
  CheckpointSaver(FileSystem& files, collective::Communicator& communicator, const Clock& clock,
                  SaverOptions options, Logger log);
  // A save that is not sealed is abandoned: its thread stops at the next buffer, the temporary
  // directory goes (rank 0). A commit under way is finished.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Collective, at a step boundary; one save at a time (a failed check otherwise). The memory of
  // all pieces must stay unchanged until seal() returned or the saver is gone. kInvalidArgument
  // where pieces are wrong in themselves, overlap or leave holes: on all ranks, naming rank and
  // tensor; nothing was started then. Other errors are the communicator's: the run's generation
  // ended.
  Status start(SaveContents contents);

  // Between start() and seal().
  bool started() const;

  // Collective. Waits for this rank's writing (at most write_timeout), tells all ranks the outcome;
  // when it returns, the pieces' memory may change. An error is the communicator's; a save that
  // failed is a dropped one (SealReport::outcome), and training goes on. Where the disk did not
  // answer in time the memory may change, too, but must stay mapped as long as the saver lives.
  Result<SealReport> seal();

  // Rank 0: what became of sealed saves, oldest first, once each is committed or failed. Nothing
  // while none is known. Never blocks.
  std::optional<Result<WrittenCheckpoint>> poll();

  // Local: waits until no commit is under way; poll() has the results. kDeadlineExceeded.
  Status wait(Deadline deadline);

  // Collective, blocking: the final output. Puts the weights in HF form and contents.files into
  // output_dir itself, file by file, in an order that leaves the old model, the new one, or one
  // that is refused on loading. No save may be started. An error is the same on all ranks.
  Status save_model(SaveContents contents);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace troupe::train
