#pragma once
// Calls of the table's functions that are written down instead of made.
//
// A record stands between whoever enqueues work and the library: it gives out a table and a stream
// of its own. While it is open, calls are kept by value: the function, addresses, numbers and the
// structs that describe a call. Records of equal words do the same to the same memory, so that one
// may be done in place of the other. While it is closed, calls are the library's at once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/cuda/device/cuda_library.h"

namespace troupe::train {

// Of one stream's calls, by one thread.
class LaunchRecord {
 public:
  // `stream`: where calls go; it outlives the record.
  LaunchRecord(std::shared_ptr<const CudaLibrary> library, TroupeCudaStream* stream);
  LaunchRecord(const LaunchRecord&) = delete;
  LaunchRecord& operator=(const LaunchRecord&) = delete;

  // What operators call, and attention: functions that enqueue arithmetic, or copies within the
  // device, on stream(), and those of a context. What else takes a stream is null there.
  const TroupeCudaTable& table() const { return table_; }
  // The same table, for who keeps a library. Not beyond the record.
  const std::shared_ptr<const CudaLibrary>& recording_library() const { return recording_library_; }
  // For table()'s functions alone.
  TroupeCudaStream* stream() { return reinterpret_cast<TroupeCudaStream*>(this); }

  // From here on calls are kept; what was kept before is forgotten.
  void open();
  // What was kept stays. Who asks whether stream() is done closes an open record, too, and makes
  // its calls first.
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  // What the following calls are, in errors. It stays as long as the program.
  void name(const char* what) { name_ = what; }

  // All that was kept: equal where the calls are.
  std::span<const std::uint64_t> words() const { return words_; }
  std::size_t calls() const { return calls_.size(); }
  // Makes the calls, in order, up to the first one that fails: its code, and what it was.
  int run(const char** failed) const;

 private:
  template <auto kFunction>
  struct Kept;
  // Makes the call whose arguments are at `at`, and moves it behind them.
  using Replay = int (*)(const TroupeCudaTable& table, TroupeCudaStream* stream,
                         const std::uint64_t*& at);
  struct Call {
    Replay replay;
    const char* name;
  };

  static LaunchRecord& of(TroupeCudaStream* stream) {
    return *reinterpret_cast<LaunchRecord*>(stream);
  }
  static int query(TroupeCudaStream* stream);
  static TroupeCudaTable make_table(const TroupeCudaTable& real);

  const std::shared_ptr<const CudaLibrary> library_;
  TroupeCudaStream* const stream_;
  const TroupeCudaTable table_;
  const std::shared_ptr<const CudaLibrary> recording_library_;
  bool open_ = false;
  const char* name_ = "";
  std::vector<Call> calls_;
  std::vector<std::uint64_t> words_;  // each call's function and arguments
};

}  // namespace troupe::train
