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
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"
#include "train/trainer/host_access.h"

namespace troupe::train {

// Where a state comes from. The same on all ranks.
struct StateSource {
  std::string path;         // a checkpoint, or a model's folder
  bool checkpoint = false;  // else weights alone
  bool optimizer = false;   // of a checkpoint: the optimizer's slots, too
};

// Rank 0's text becomes everybody's.
Status broadcast_text(collective::Communicator& world, std::string& text);

// Fills this rank's parameters (and the optimizer's slots; zeroed where there are none).
// Collective: every rank reads its own ranges; where some rank does not see the files that rank 0
// sees, rank 0 reads for all and broadcasts tensor by tensor. kDataLoss where tensors are missing
// or have another shape than the model's. `access`: to the buffers' memory.
Status load_state(FileSystem& files, const StateSource& source, const ModelConfig& config,
                  const RankLayout& layout, const StateBuffers& buffers, HostAccess& access,
                  bool zeroed, collective::Communicator& world);

// The weights of a model's folder, whole and in fp32: (layout.total_elements()).
Status read_model(FileSystem& files, const std::string& folder, const ModelConfig& config,
                  const ParameterLayout& layout, std::span<float> parameters);

// Initial weights by the model's rule, seeded. Local: every rank makes its own, on all threads of
// `arena`. Here and above `zeroed` says that the buffers are new memory, which nobody has written.
Status initialize_state(const ModelConfig& config, std::uint64_t seed, const RankLayout& layout,
                        const StateBuffers& buffers, HostAccess& access, bool zeroed, Arena& arena);

// What this rank adds to a checkpoint: views of the buffers, in whatever memory.
std::vector<TensorPiece> weight_pieces(const RankLayout& layout, const StateBuffers& buffers);
std::vector<TensorPiece> optimizer_pieces(const RankLayout& layout, const StateBuffers& buffers);

}  // namespace troupe::train
