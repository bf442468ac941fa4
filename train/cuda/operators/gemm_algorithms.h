#pragma once
// Which of the vendor's algorithms computes a product: chosen once, written down, taken again.
//
// Algorithms sum in different orders, so bits depend on the choice. It is made without timing (the
// first that the vendor's library names for the workspace) unless tune() is called for a product,
// and can be written as text and read again: ranks that read one rank's text, and a resumed run
// that reads its own, compute the same bits.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/stream.h"

namespace troupe::train {

// Workspace that is enough for the vendor's best algorithms on devices with large memories, as its
// documentation recommends for the newest: 32 MiB.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

// "bf16 m=512 n=4864 k=896 a=bf16/896 bT=bf16/896 c=f32/4864 align=16 +bias": in errors and
// reports.
std::string describe_gemm(const TroupeCudaGemm& gemm);

// Not for use by two threads at once.
class GemmAlgorithms {
 public:
  // Algorithms may need up to `workspace_bytes`.
  GemmAlgorithms(std::shared_ptr<CudaDevice> device, std::int64_t workspace_bytes);

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  // The same for the same product, always. kUnsupported: the library has none for it.
  Result<TroupeCudaAlgorithm> choose(const TroupeCudaGemm& gemm);
  // The same; nothing where the library has none, for who can do without. It is asked once.
  Result<std::optional<TroupeCudaAlgorithm>> choose_if_any(const TroupeCudaGemm& gemm);
  // Those that the library names, best first, at most `count_max`.
  Result<std::vector<TroupeCudaAlgorithm>> candidates(const TroupeCudaGemm& gemm,
                                                      int count_max) const;

  // Operands to time with; `c` is overwritten.
  struct Operands {
    const void* a = nullptr;
    const void* b = nullptr;
    void* c = nullptr;
    void* workspace = nullptr;  // workspace_bytes()
    // Of epilogues that have them.
    const void* bias = nullptr;
    void* gelu_input = nullptr;
  };
  // By candidate: milliseconds of one product, the least of `repeats`.
  struct Timing {
    TroupeCudaAlgorithm algorithm{};
    double milliseconds = 0;
  };
  Result<std::vector<Timing>> time(const TroupeCudaGemm& gemm, const Operands& operands,
                                   CudaStream& stream, int candidates_max, int repeats) const;
  // Takes the fastest of the first candidates for this product from now on. Before its first use
  // only: a failed check where one was chosen already. Another run may choose differently: write
  // the choice down.
  Status tune(const TroupeCudaGemm& gemm, const Operands& operands, CudaStream& stream,
              int candidates_max, int repeats);

  // All choices, for the device and library that they were made with, one a line, in a fixed order.
  std::string to_text() const;
  // Takes choices that to_text() wrote; those made already must be the same. kFailedPrecondition:
  // made with another version of the library, on another kind of device, for another workspace, or
  // another choice is in use; kInvalidArgument: not such a text. Nothing is taken then.
  Status take_text(std::string_view text);
  std::size_t size() const { return chosen_.size(); }

 private:
  struct Less {
    bool operator()(const TroupeCudaGemm& a, const TroupeCudaGemm& b) const;
  };
  using Chosen = std::map<TroupeCudaGemm, TroupeCudaAlgorithm, Less>;
  std::string header() const;
  static Result<Chosen> parse_lines(std::string_view lines);

  std::shared_ptr<CudaDevice> device_;
  std::int64_t workspace_bytes_;
  Chosen chosen_;
  std::set<TroupeCudaGemm, Less> without_;  // the library has no algorithm for them
};

}  // namespace troupe::train
