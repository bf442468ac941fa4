#pragma once
// What the controller tells of a run: the events in events.jsonl, and lines for the driver.
//
// Neither a full disk nor a driver that does not read holds up the run. One thread.

#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "train/report/run_event.h"
#include "train/report/step_log.h"
#include "train/trainer/driver_link.h"
#include "troupe/log.h"

namespace troupe::train {

class RunJournal {
 public:
  // `files` and `clock` outlive it.
  RunJournal(FileSystem& files, const Clock& clock, Logger log, std::string output_dir);

  // Opens events.jsonl; `anew`: without the events of a run before. Until then the driver alone is
  // told.
  Status open(bool anew);
  // Tells an event that happened `ago`; `text`: the same as a sentence for people.
  void record(const RunEvent& event, const std::string& text = "", Duration ago = {});
  // After the event that ends the run: makes the file durable, and waits a few seconds for the
  // driver to read `line` and all before it.
  void finish(const json::Object& line);
  DriverLink& driver() { return driver_; }

 private:
  FileSystem& files_;
  const Clock& clock_;
  Logger log_;
  const std::string output_dir_;
  DriverLink driver_;
  std::optional<LineFile> events_;
};

}  // namespace troupe::train
