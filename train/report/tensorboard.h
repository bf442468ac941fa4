#pragma once
// TensorBoard's event file of a run (report_to: tensorboard): every entry of log_history as
// scalars, under the tags of transformers' TensorBoardCallback ("train/loss", "eval/loss").
//
// A run has one file, named after its output_dir, so that several may share a logging_dir; what it
// holds is a prefix of log_history: whoever goes on with a run,
// after a death or from a checkpoint, cuts off what is not in the history and adds what is missing.
// So no step is there twice.
//
// Format: TensorFlow's records (a length and its masked CRC-32C, the bytes and theirs) of Event
// messages (tensorflow/core/util/event.proto).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"

namespace troupe::train {

// "events.out.tfevents.1a2b3c4d.troupe"
std::string event_file_name(const std::string& output_dir);

class TensorBoardFile {
 public:
  // The file at `path` with `history` and nothing else; its folder is made.
  static Result<TensorBoardFile> open(FileSystem& files, const Clock& clock,
                                      const std::string& path, const json::Array& history);
  // A further entry of the history.
  Status add(const json::Object& entry);

 private:
  TensorBoardFile(const Clock& clock, std::unique_ptr<WritableFile> file)
      : clock_(&clock), file_(std::move(file)) {}
  const Clock* clock_;
  std::unique_ptr<WritableFile> file_;
};

// One record of the file; and the records of a file as far as they are whole, as offsets of their
// ends.
std::string event_record(std::string_view event);
std::vector<std::size_t> whole_records(std::string_view file);

}  // namespace troupe::train
