#pragma once
// The rows of data sets as a stream: mixed and shuffled while they are read, no more of them held
// than the shuffling wants.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "train/data/conversation.h"
#include "train/data/load_conversations.h"
#include "train/data/shuffle_buffer.h"

namespace troupe::train {

using StreamBeat = std::function<void()>;

// Rows that `read` gives, one at a time when they are asked for: a thread reads some ahead. One
// thread at a time asks.
class PulledRows {
 public:
  using Reading = std::function<Status(const RowTaker& take)>;
  // `beat` is called by who asks, now and then while it reads or waits.
  explicit PulledRows(Reading read, StreamBeat beat = {});
  ~PulledRows();  // the reading ends, wherever it is
  // Whether there is another one. What the reading failed with.
  Result<bool> has_next();
  // After has_next() said so.
  Conversation next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Rows of several sources by LLaMA-Factory's mix_strategy, as its streams are mixed: a source that
// has ended is noticed with its last row.
class MixedRows {
 public:
  using Sources = std::vector<PulledRows::Reading>;
  MixedRows(Sources sources, std::string strategy, const std::vector<double>& shares,
            std::uint32_t seed, StreamBeat beat = {});
  // Nothing at the end.
  Result<std::optional<Conversation>> next();

 private:
  std::size_t choose();
  bool over() const;

  Sources sources_;
  std::string strategy_;
  StreamBeat beat_;
  std::optional<NumpyChoice> choice_;
  std::vector<std::unique_ptr<PulledRows>> rows_;
  std::vector<bool> ended_;
  std::size_t turn_ = 0;
};

struct StreamOrder {
  std::int64_t buffer_size = 16384;
  bool shuffle = true;
};

// One epoch of the data sets that `options` names.
class RowStream {
 public:
  // kUnsupported by name for data sets whose rows cannot be streamed.
  static Result<std::unique_ptr<RowStream>> open(FileSystem& files, const DataOptions& options,
                                                 const StreamOrder& order, std::int64_t epoch,
                                                 StreamBeat beat = {});
  // Nothing at the end.
  Result<std::optional<Conversation>> next();

 private:
  RowStream(MixedRows rows, std::optional<ShuffleBuffer<Conversation>> buffer)
      : rows_(std::move(rows)), buffer_(std::move(buffer)) {}
  MixedRows rows_;
  std::optional<ShuffleBuffer<Conversation>> buffer_;  // nothing: in the order of the files
};

}  // namespace troupe::train
