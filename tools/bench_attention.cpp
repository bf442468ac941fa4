// fp32 attention by the size of a head: `tools/bench train`.
//
//   bench_attention THREADS
//
// Forward and backward of one batch row of 256 tokens and 8 heads, for every head_dim from 8 to 256
// in steps of 8: the fastest of some runs, in nanoseconds an element of the queries. Lines of "pass
// head_dim", value and unit, tabs between them.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "train/cpu/arena.h"
#include "train/cpu/attention.h"
#include "train/cpu/workspace.h"

namespace {

using namespace troupe;         // NOLINT
using namespace troupe::train;  // NOLINT
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTokens = 256, kHeads = 8;
constexpr int kRuns = 7;

template <typename Work>
double fastest_ns(Work work) {
  double best = 1e18;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  Arena arena(threads);
  SlotWorkspaces workspaces(threads);
  std::map<std::int64_t, double> forward, backward;
  for (std::int64_t dim = 8; dim <= 256; dim += 8) {
    const std::int64_t width = kHeads * dim;
    const auto elements = static_cast<std::size_t>(kTokens * width);
    AttentionShape s{};
    s.batch = 1;
    s.query_length = s.key_length = kTokens;
    s.query_heads = s.key_heads = kHeads;
    s.head_dim = dim;
    s.query_stride = s.key_stride = width;
    s.key_batch_stride = kTokens * width;
    s.scale = 0.1f;
    std::vector<float> q(elements), k(elements), v(elements), out(elements), dout(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      q[i] = static_cast<float>(i % 13) * 0.1f - 0.6f;
      k[i] = static_cast<float>(i % 11) * 0.1f - 0.5f;
      v[i] = static_cast<float>(i % 7) * 0.1f - 0.3f;
      dout[i] = static_cast<float>(i % 5) * 0.1f - 0.2f;
    }
    std::vector<float> dq(elements), dk(elements), dv(elements);
    std::vector<float> lse(static_cast<std::size_t>(kTokens * kHeads));
    forward[dim] = fastest_ns([&] {
      attention_forward(arena, workspaces, s, q.data(), k.data(), v.data(), out.data(), lse.data());
    });
    backward[dim] = fastest_ns([&] {
      attention_backward(arena, workspaces, s, q.data(), k.data(), v.data(), out.data(), lse.data(),
                         dout.data(), dq.data(), dk.data(), dv.data());
    });
  }
  for (const auto& [what, times] : {std::pair{"forward", forward}, {"backward", backward}}) {
    for (const auto& [dim, ns] : times) {
      std::printf("%s %ld\t%.2f\tns\n", what, static_cast<long>(dim),
                  ns / static_cast<double>(kTokens * kHeads * dim));
    }
  }
}
