#pragma once
// What the parts of the fake share. Private to this folder.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/random.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "tests/train/cuda/fake/fake_order.h"

struct TroupeCudaContext {
  int device = 0;
};

namespace troupe::tests::fake {

// Work, and what must be there when it is enqueued.
struct Work {
  struct Use {
    const void* at = nullptr;
    std::int64_t bytes = 0;
  };
  std::function<void()> run;
  const char* function = "";
  std::vector<Use> uses = {};       // memory of the device
  std::int64_t attention_plan = 0;  // its number; 0: none
};

}  // namespace troupe::tests::fake

// Runs what is enqueued, in order, on a thread of its own.
struct TroupeCudaStream {
  // `lazy_seed`: of FakeCudaOptions, and the stream's own; 0: it does what there is to do.
  TroupeCudaStream(TroupeCudaContext* of, std::uint64_t lazy_seed);
  ~TroupeCudaStream();  // after all of it
  // A stream that is captured keeps it instead. How many there were with it.
  std::uint64_t enqueue(troupe::tests::fake::Work work);
  // Somebody waits for the first `number`: they are put off no more.
  void hurry(std::uint64_t number);
  // What no captured stream is asked breaks the capture off. OK, or the failure to answer with.
  int outside_of_capture(const char* function);
  int begin_capture();
  // What was kept.
  int end_capture(std::vector<troupe::tests::fake::Work>& kept);
  bool idle();
  void wait_idle();

  TroupeCudaContext* const context;

 private:
  using Item = std::unique_ptr<std::function<void()>>;
  void run();
  Item next();  // null: it has ended
  void put_off(std::unique_lock<std::mutex>& lock);
  bool done_locked() const { return work_.empty() && !running_; }
  void hurry_locked();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> work_;
  std::uint64_t enqueued_ = 0, begun_ = 0, hurried_ = 0;
  std::optional<troupe::SeededRandom> lazy_;
  std::uint64_t stretch_ = 0;  // that is left of what is put off, or is not
  bool puts_off_ = false;
  bool capturing_ = false;
  bool broken_ = false;  // the capture
  std::vector<troupe::tests::fake::Work> kept_;
  bool running_ = false;
  bool ended_ = false;
  std::thread thread_;
};

struct TroupeCudaEvent {
  // A record that was enqueued: done when its stream came to it.
  struct Record {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::int64_t at_ns = 0;
    TroupeCudaStream* stream = nullptr;  // until it is done
    std::uint64_t number = 0;            // of the stream's work
  };
  TroupeCudaContext* context = nullptr;
  bool timed = false;
  std::mutex mutex;
  std::shared_ptr<Record> last;  // null: never recorded
};

struct TroupeCudaMemory {
  TroupeCudaContext* context = nullptr;
  int descriptor = -1;
  std::int64_t bytes = 0;
  // Counts against the device's memory as long as anything of it is left in this process.
  std::shared_ptr<void> charge;
};

namespace troupe::tests::fake {

// Of addresses that copies may use without being synchronous.
struct Range {
  std::int64_t bytes = 0;
  bool pinned = false;  // of the host; else the device's
  std::shared_ptr<void> charge;
};

// Counted among what is left until the next reset: a group was aborted while another one's
// operation was on its context.
inline constexpr const char* kWaitingAbort = "abort that waits for another group";

class State {
 public:
  State();
  // Notes the call. OK, or what a fault or a lost device makes of it.
  int enter(const char* function, int device = -1);
  int fail(int code, std::string text);
  const char* last_text() const;

  void reset(const FakeCudaOptions& options);
  void inject(FakeCudaFault fault);
  void lose(int device);
  bool lost(int device);
  void fail_groups(int rank, int code, std::string text);
  std::optional<std::pair<int, std::string>> group_failure(int rank);
  std::int64_t calls(const std::string& function);
  void end_update(const FakeUpdateEnd& end);
  bool ends_update();
  // What was asked for of the next update; forgotten with it.
  std::optional<FakeUpdateEnd> take_update_end();
  void updated(std::int64_t moments);
  std::int64_t update_moments();
  // Numbers of attention's plans that are there.
  std::int64_t add_plan();
  void remove_plan(std::int64_t plan);
  bool has_plan(std::int64_t plan);
  std::vector<std::string> left();

  FakeCudaOptions options();
  // Null where the device has no more room.
  std::shared_ptr<void> charge(int device, std::int64_t bytes);
  std::int64_t allocated(int device);
  std::uint64_t next_stream_seed();  // 0: streams are not lazy
  // See OpenMemory: opens what guards_memory keeps shut.
  bool guards_memory() const { return guards_memory_.load(std::memory_order_relaxed); }
  void begin_work();
  void end_work();
  void add_range(void* begin, Range range);
  bool remove_range(void* begin);
  // Whether [at, at + bytes) lies within memory of the device or pinned memory.
  bool known(const void* at, std::int64_t bytes);
  // Whether it is the device's.
  bool on_device(const void* at, std::int64_t bytes);
  void count_object(const char* kind, int by);

 private:
  const Range* find(const void* at, std::int64_t bytes);
  // Under the lock: of all ranges of the device's.
  void protect(bool open);

  std::mutex mutex_;
  FakeCudaOptions options_;
  std::vector<FakeCudaFault> faults_;
  std::set<int> lost_;
  std::map<int, std::pair<int, std::string>> group_failures_;
  std::map<std::string, std::int64_t> calls_, objects_;
  std::optional<FakeUpdateEnd> update_end_;
  std::int64_t update_moments_ = 0;
  std::int64_t plans_made_ = 0;
  std::set<std::int64_t> plans_;
  std::map<int, std::shared_ptr<std::int64_t>> allocated_;
  std::map<std::uintptr_t, Range> ranges_;
  std::uint64_t streams_made_ = 0;
  // Apart, for streams' threads, which nothing but the streams' own order is to order.
  std::atomic<bool> guards_memory_{false};
  int working_ = 0;  // streams, where memory is guarded
};

State& state();

// As long as it lives, guarded memory is open: around a stream's work, or what the fake itself
// reads.
class OpenMemory {
 public:
  OpenMemory() {
    if (guards_) state().begin_work();
  }
  ~OpenMemory() {
    if (guards_) state().end_work();
  }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  const bool guards_ = state().guards_memory();
};

// Until all streams of the context are idle.
void wait_for_streams(TroupeCudaContext* context);

// Each fills its functions in.
void fill_memory(TroupeCudaTable& table);
void fill_streams(TroupeCudaTable& table);
void fill_operators(TroupeCudaTable& table);
void fill_products(TroupeCudaTable& table);
void fill_optimizer(TroupeCudaTable& table);
void fill_groups(TroupeCudaTable& table);
void fill_attention(TroupeCudaTable& table);
void fill_graphs(TroupeCudaTable& table);
// Behind all of them: kernel_functions.cpp.
void compose_with_kernels(TroupeCudaTable& table);

}  // namespace troupe::tests::fake
