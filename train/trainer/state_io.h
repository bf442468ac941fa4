#pragma once
// A rank's state out of a checkpoint or a model's folder, and into one.

#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/collective/communicator.h"
#include "train/checkpoint/tensor_piece.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/cpu/arena.h"
#include "train/model/model_config.h"
#include "train/model/model_layout.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/trainer/derived_base.h"
#include "train/trainer/host_access.h"

namespace troupe::train {

// Where a state comes from. The same on all ranks.
struct StateSource {
  // A checkpoint, or a model's folder; empty: initial values alone.
  std::string path;
  bool checkpoint = false;          // else weights alone
  bool optimizer = false;           // of a checkpoint: the optimizer's slots, too
  std::int64_t moment_updates = 0;  // of those, see CommitRecord
  // A folder of adapters in PEFT's form, for what a model's folder does not hold; empty: they begin
  // with initial values, as does a value head that neither folder has.
  std::string adapter;
  // What of a model's folder takes its place; null: it is the base itself.
  DerivedBase* base = nullptr;
  // The frozen parameters are in their buffer already.
  bool has_frozen = false;
};

// All members get the root's bytes. In pieces of at most HostAccess::kPieceBytes, each of which is
// a sign of life.
Status broadcast_pieces(collective::Communicator& group, int root, std::span<std::byte> bytes);
// The root's text becomes everybody's.
Status broadcast_text(collective::Communicator& world, std::string& text, int root = 0);

// Fills this rank's trained parameters (and the optimizer's slots; zeroed where there are none).
// Collective: every rank reads its own ranges; where some rank does not see the files that rank 0
// sees, rank 0 reads for all and broadcasts tensor by tensor. kDataLoss where tensors are missing
// or have another shape than the model's. Adapters that no file holds get initial values by `seed`.
// `access`: to the buffers' memory.
Status load_state(FileSystem& files, const StateSource& source, const ModelConfig& config,
                  const ModelLayout& model, std::uint64_t seed, const RankLayout& layout,
                  const StateBuffers& buffers, HostAccess& access, bool zeroed,
                  collective::Communicator& world);
// Whether a checkpoint holds the tensors of such a run, by their names and shapes alone.
Status check_checkpoint_fits(FileSystem& files, const std::string& checkpoint,
                             const ModelConfig& config, const ModelLayout& model);
// The same of a model's folder, before any rank reads it.
Status check_model_fits(FileSystem& files, const std::string& folder, const ModelConfig& config,
                        const ModelLayout& model);
// Fills the frozen parameters of layout.frozen(), kept in `type`, from a model's folder, or from
// what takes its place; copies of a reference from `reference`, where that has a path. Collective,
// as above; what is derived rank 0 computes for all.
Status load_frozen(FileSystem& files, const StateSource& source, const StateSource& reference,
                   const ModelConfig& config, const ModelLayout& model, const RankLayout& layout,
                   const StateBuffers& buffers, DType type, HostAccess& access,
                   collective::Communicator& world);

// Initial weights by the model's rule, seeded, of what is trained. Local: every rank makes its own,
// on all threads of `arena`. Here and above `zeroed` says that the buffers are new memory, which
// nobody has written.
Status initialize_state(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                        const StateBuffers& buffers, HostAccess& access, bool zeroed, Arena& arena);
// The same of the frozen parameters of layout.frozen(), kept in `type`.
Status initialize_frozen(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                         const StateBuffers& buffers, DType type, HostAccess& access, Arena& arena);

// What this rank adds to a checkpoint: views of the buffers, in whatever memory.
// Weights: what is trained, under PEFT's names where that is adapters; else the frozen ones, kept
// in `frozen`, too.
std::vector<TensorPiece> weight_pieces(const ModelLayout& model, const RankLayout& layout,
                                       const StateBuffers& buffers, DType frozen);
// The slots after so many updates of them.
std::vector<TensorPiece> optimizer_pieces(const ModelLayout& model, const RankLayout& layout,
                                          const StateBuffers& buffers, std::int64_t updates);

}  // namespace troupe::train
