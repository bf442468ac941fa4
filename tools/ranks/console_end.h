#pragma once
// Which of a rank's last words whoever reads the console has just read.

#include <cstddef>
#include <string_view>

#include "runtime/wire/control_messages.h"

namespace troupe::tools {

// The end of what ranks have written on the console. Not thread-safe.
class ConsoleEnd {
 public:
  // The line, or the part of one, stands there now.
  void show(const wire::OutputLine& line);
  // `lines`: the last ones of the rank's standard error, each with its end. Whether they stand at
  // the console's end, all of them or from the first traceback among them on: nothing of another
  // rank between or behind them, and hardly anything of its own standard output behind.
  bool holds(const ActorId& rank, std::string_view lines) const;

 private:
  ActorId rank_;                  // whose words the last ones are
  std::size_t error_bytes_ = 0;   // of whole lines that it wrote on standard error without a break
  std::size_t lines_behind_ = 0;  // of its standard output, behind them
};

}  // namespace troupe::tools
