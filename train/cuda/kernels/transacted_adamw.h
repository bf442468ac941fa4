#pragma once
// AdamW over ranges, by blocks that stay, under an undo log in the device's memory.
//
// A process may be killed while its kernel runs: the blocks stop wherever they are, and the next
// process finds in memory what had come there. Of the stores of a thread that is a prefix only
// where a fence stands between them: __threadfence() returns when the thread's earlier stores have
// been performed in the L2 cache, which is what every later kernel of any process reads, and what
// copies to and from the device read; the multiprocessors' own caches are written through. Stores
// that no fence divides have come there in part, in any order. A word of eight bytes is written
// whole.
//
// So a block goes through its chunks in turns of two phases, each of which ends with a fence of
// every thread that stored and a barrier, which makes what follows come after all of them:
//
//   change:   chunk k is updated in place            | the old bytes of chunk k + 1 are saved, in
//                                                    | the other one of the block's two slots
//   announce: the mark of chunk k says: done         | that slot's header says: chunk k + 1
//
// What holds at every instant: a chunk that may have been touched (k, from its change on) is named
// by the header of a slot that has all of its old bytes, until its mark says that all of it is
// updated. For the header was there before the change began; and the slot is written again only in
// the change of k + 1, in which k + 2 is saved, after the fence behind k's mark. (Between that and
// its next header the slot names k, whose mark keeps anybody from restoring it.) A header names a
// step, too, which is written while it names no chunk. So: restore what slots of this step name and
// marks do not call done, then update what they do not call done. Restoring takes nothing away, and
// may be broken off and done again. Two slots may name one chunk, where a process was killed that
// finished another one's update: both have the same old bytes, as it was restored in between.
//
// Everything is read once and written once, as in an update without a log, in the same arithmetic.
// While a block's fences wait, the loads of its next chunk are under way and other blocks work.

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/elementwise.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

// Of a block on a GPU; a chunk is a pack for each of them.
inline constexpr int kUpdateThreads = 128;

// As TroupeCudaUpdateRange and TroupeCudaDecayEnd.
struct ChunkRange {
  std::int64_t first_chunk, flat, parameters, gradients, moments;
};
struct DecayEnd {
  std::int64_t end, decays;
};

struct alignas(64) UndoHeader {
  std::uint64_t chunk;  // 1 + the chunk; 0: nothing whole is saved
  std::uint64_t step;   // it was saved for
};

template <class State>
struct TransactedAdamW {
  State* parameters;
  const float* gradients;
  State* first_moments;
  State* second_moments;
  const ChunkRange* ranges;
  std::int64_t range_count;
  const DecayEnd* decays;
  std::int64_t chunks;
  std::uint64_t step;
  std::uint64_t* marks;
  UndoHeader* headers;  // two slots of each writer
  PackWords* saved;     // a slot's: the packs of the parameters, of either moment
  float gradient_scale;
  AdamWConstants constants;  // keep: of what decays
  bool round_randomly;       // states of Bf16
  std::uint64_t seed;
};

// The device's memory as kernels see it. Tests give one that holds stores back until a fence.
struct DeviceWords {
  // Of what is read once in a launch, and stored once: it goes out of the cache first, so that
  // slots stay.
  TROUPE_HOST_DEVICE PackWords load(const PackWords* from) const {
#if defined(__CUDA_ARCH__)
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
    return {{words.x, words.y, words.z, words.w}};
#else
    return *from;
#endif
  }
  TROUPE_HOST_DEVICE void store(int, PackWords* to, const PackWords& words) const {
#if defined(__CUDA_ARCH__)
    __stcs(reinterpret_cast<uint4*>(to),
           make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]));
#else
    *to = words;
#endif
  }
  TROUPE_HOST_DEVICE void save(int, PackWords* to, const PackWords& words) const { *to = words; }
  TROUPE_HOST_DEVICE void store(int, std::uint64_t* to, std::uint64_t value) const { *to = value; }
  // Of what the thread has stored.
  TROUPE_HOST_DEVICE void fence(int) const {
#if defined(__CUDA_ARCH__)
    __threadfence();
#else
    // A process of the tests' that is killed leaves a prefix of what its one thread did, as far as
    // the compiler kept the order.
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
};

// What a thread holds of a chunk: bits as memory has them.
template <class State>
struct ChunkPack {
  static constexpr int kWords = kPackWords<kPack, State>;
  PackWords state[3][kWords];  // parameters, first and second moments
  PackWords gradient[kPackWords<kPack, float>];
};

// Where a chunk's elements begin.
struct ChunkPlace {
  std::int64_t flat, parameters, gradients, moments;
};

template <class State, int kThreads>
struct ChunkWords {
  static constexpr std::int64_t kChunk = std::int64_t{kThreads} * kPack;
  static constexpr int kWords = ChunkPack<State>::kWords;

  // `range`: that the chunk lies in.
  TROUPE_HOST_DEVICE static ChunkPlace place(const ChunkRange& range, std::int64_t chunk) {
    const std::int64_t within = (chunk - range.first_chunk) * kChunk;
    return {range.flat + within, range.parameters + within, range.gradients + within,
            range.moments + within};
  }
  // A thread's pack of the i-th state at a place.
  TROUPE_HOST_DEVICE static PackWords* state(const TransactedAdamW<State>& a,
                                             const ChunkPlace& place, int i, int thread) {
    State* base = i == 0 ? a.parameters : i == 1 ? a.first_moments : a.second_moments;
    const std::int64_t offset = i == 0 ? place.parameters : place.moments;
    return reinterpret_cast<PackWords*>(base + offset + std::int64_t{thread} * kPack);
  }
  // Where a slot keeps it.
  TROUPE_HOST_DEVICE static PackWords* saved(const TransactedAdamW<State>& a, std::int64_t slot,
                                             int i, int thread) {
    return a.saved + ((slot * 3 + i) * kThreads + thread) * kWords;
  }
};

// The range of chunk `chunk`, at `from` or behind it.
TROUPE_HOST_DEVICE std::int64_t range_of(const ChunkRange* ranges, std::int64_t count,
                                         std::int64_t from, std::int64_t chunk) {
  while (from + 1 < count && ranges[from + 1].first_chunk <= chunk) ++from;
  return from;
}

// One block that updates: writer `writer` of `writers`, from chunk `writer` on every
// `writers`-th. open(), then change() and announce() as long as working().
template <class State, int kThreads, class Words>
class UpdateWriter {
 public:
  using Writers = Block<kThreads>;

  TROUPE_HOST_DEVICE UpdateWriter(const TransactedAdamW<State>& a, std::int64_t writer,
                                  std::int64_t writers)
      : a_(a), writer_(writer), writers_(writers), candidate_(writer - writers) {}

  TROUPE_HOST_DEVICE bool working() const { return now_ >= 0 || next_ >= 0 || !begun_; }

  // The slots name no chunk, then this step: what they named before was restored.
  TROUPE_HOST_DEVICE void open(const Writers& block, Words& words) {
    block.phase([&](int t) {
      if (t != 0) return;
      UndoHeader* headers = a_.headers + 2 * writer_;
      words.store(t, &headers[0].chunk, 0);
      words.store(t, &headers[1].chunk, 0);
      words.fence(t);
      words.store(t, &headers[0].step, a_.step);
      words.store(t, &headers[1].step, a_.step);
      words.fence(t);
    });
  }

  TROUPE_HOST_DEVICE void change(const Writers& block, Words& words) {
    begun_ = true;
    slot_ ^= 1;
    // The loads are under way while the chunk before is computed; only then is its mark asked.
    bool more = load_candidate(block, words);
    if (now_ >= 0) block.each([&](int t) { update(words, t); });
    while (more && mark_ == a_.step) more = load_candidate(block, words);
    next_ = more ? candidate_ : -1;
    block.phase([&](int t) {
      if (next_ >= 0) save(words, t);
      words.fence(t);
    });
  }

  TROUPE_HOST_DEVICE void announce(const Writers& block, Words& words) {
    block.phase([&](int t) {
      if (t == 0) {
        if (now_ >= 0) words.store(t, &a_.marks[now_], a_.step);
        if (next_ >= 0)
          words.store(t, &a_.headers[2 * writer_ + slot_].chunk,
                      static_cast<std::uint64_t>(next_) + 1);
        words.fence(t);
      }
      pack_[t] = next_pack_[t];
    });
    now_ = next_;
    place_ = next_place_;
    next_ = -1;
  }

 private:
  using Chunk = ChunkWords<State, kThreads>;
  static constexpr int kWords = Chunk::kWords;

  // The writer's next chunk, done or not: false when there is none.
  TROUPE_HOST_DEVICE bool load_candidate(const Writers& block, Words& words) {
    if (candidate_ + writers_ >= a_.chunks) return false;
    candidate_ += writers_;
    range_ = range_of(a_.ranges, a_.range_count, range_, candidate_);
    next_place_ = Chunk::place(a_.ranges[range_], candidate_);
    mark_ = a_.marks[candidate_];
    block.each([&](int t) {
      ChunkPack<State>& to = next_pack_[t];
      TROUPE_UNROLL
      for (int i = 0; i < 3; ++i) {
        const PackWords* from = Chunk::state(a_, next_place_, i, t);
        TROUPE_UNROLL
        for (int k = 0; k < kWords; ++k) to.state[i][k] = words.load(from + k);
      }
      const auto* gradients = reinterpret_cast<const PackWords*>(
          a_.gradients + next_place_.gradients + std::int64_t{t} * kPack);
      TROUPE_UNROLL
      for (int k = 0; k < kPackWords<kPack, float>; ++k) to.gradient[k] = words.load(gradients + k);
    });
    return true;
  }

  TROUPE_HOST_DEVICE void save(Words& words, int t) {
    TROUPE_UNROLL
    for (int i = 0; i < 3; ++i) {
      PackWords* to = Chunk::saved(a_, 2 * writer_ + slot_, i, t);
      TROUPE_UNROLL
      for (int k = 0; k < kWords; ++k) words.save(t, to + k, next_pack_[t].state[i][k]);
    }
  }

  TROUPE_HOST_DEVICE void update(Words& words, int t) {
    ChunkPack<State>& pack = pack_[t];
    float p[kPack], m[kPack], v[kPack], g[kPack];
    unpack<State>(pack.state[0], p);
    unpack<State>(pack.state[1], m);
    unpack<State>(pack.state[2], v);
    unpack<float>(pack.gradient, g);
    const std::int64_t first = place_.flat + std::int64_t{t} * kPack;
    // From the chunk's first range on: few chunks have more than one.
    std::int64_t decay = decay_;
    while (a_.decays[decay].end <= place_.flat) ++decay;
    decay_ = decay;
    float keep[kPack];
    std::int64_t end = a_.decays[decay].end;
    float kept = a_.decays[decay].decays != 0 ? a_.constants.keep : 1.0f;
    TROUPE_UNROLL
    for (int k = 0; k < kPack; ++k) {
      while (first + k >= end) {
        ++decay;
        end = a_.decays[decay].end;
        kept = a_.decays[decay].decays != 0 ? a_.constants.keep : 1.0f;
      }
      keep[k] = kept;
    }
    TROUPE_UNROLL
    for (int k = 0; k < kPack; ++k) {
      AdamWConstants constants = a_.constants;
      constants.keep = keep[k];
      const AdamWElement e = adamw_updated(constants, {p[k], m[k], v[k]}, g[k] * a_.gradient_scale);
      p[k] = e.parameter, m[k] = e.first, v[k] = e.second;
    }
    if constexpr (sizeof(State) == sizeof(Bf16)) {
      // Afterwards all values are bf16's: packing them rounds nothing.
      if (a_.round_randomly) round_states(a_.seed, first, p, m, v);
    }
    cuda::pack<State>(p, pack.state[0]);
    cuda::pack<State>(m, pack.state[1]);
    cuda::pack<State>(v, pack.state[2]);
    TROUPE_UNROLL
    for (int i = 0; i < 3; ++i) {
      PackWords* to = Chunk::state(a_, place_, i, t);
      TROUPE_UNROLL
      for (int k = 0; k < kWords; ++k) words.store(t, to + k, pack.state[i][k]);
    }
  }

  const TransactedAdamW<State>& a_;
  const std::int64_t writer_, writers_;
  std::int64_t candidate_;  // the last chunk that was loaded
  std::uint64_t mark_ = 0;  // its mark
  std::int64_t range_ = 0;  // that it lies in
  std::int64_t decay_ = 0;  // the first range of the chunk that is updated
  std::int64_t now_ = -1;   // is saved and named, and will be changed
  std::int64_t next_ = -1;  // will be saved and named
  ChunkPlace place_{}, next_place_{};
  int slot_ = 1;  // of `next_`
  bool begun_ = false;
  PerThread<ChunkPack<State>, kThreads> pack_, next_pack_;
};

// One block a slot: copies back what it saved of a chunk of this step that is not done.
template <class State, int kThreads, class Words>
TROUPE_HOST_DEVICE void restore_chunk(const Block<kThreads>& block, const TransactedAdamW<State>& a,
                                      Words& words) {
  using Chunk = ChunkWords<State, kThreads>;
  const UndoHeader& header = a.headers[block.x];
  const std::uint64_t held = header.chunk;
  if (held == 0 || held > static_cast<std::uint64_t>(a.chunks) || header.step != a.step) return;
  const auto chunk = static_cast<std::int64_t>(held) - 1;
  if (a.marks[chunk] == a.step) return;
  const std::int64_t range = range_of(a.ranges, a.range_count, 0, chunk);
  const ChunkPlace place = Chunk::place(a.ranges[range], chunk);
  block.each([&](int t) {
    for (int i = 0; i < 3; ++i) {
      const PackWords* from = Chunk::saved(a, block.x, i, t);
      PackWords* to = Chunk::state(a, place, i, t);
      for (int k = 0; k < Chunk::kWords; ++k) words.store(t, to + k, from[k]);
    }
  });
}

}  // namespace troupe::train::cuda
