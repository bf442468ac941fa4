#include "train/chaos/process_effects.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>

#include "troupe/unique_fd.h"

namespace troupe::train {

ProcessEffects::ProcessEffects(std::function<bool(std::int32_t)> announce)
    : announce_(std::move(announce)) {}

void ProcessEffects::kill() { ::kill(::getpid(), SIGKILL); }
void ProcessEffects::stop() { ::kill(::getpid(), SIGSTOP); }
void ProcessEffects::exit(int code) { ::_exit(code); }
void ProcessEffects::raise(const std::string& text) { throw std::runtime_error(text); }
void ProcessEffects::sleep(Duration duration) { std::this_thread::sleep_for(duration); }

void ProcessEffects::write_line(const std::string& path, const std::string& line) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  const std::string text = line + "\n";
  // A line that is missing is missed by whoever asked for it; the run is not to fail of it.
  if (file.valid()) static_cast<void>(::write(file.get(), text.data(), text.size()) < 0);
}

}  // namespace troupe::train
