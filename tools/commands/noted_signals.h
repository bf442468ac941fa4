#pragma once

#include <signal.h>

#include <initializer_list>
#include <vector>

namespace troupe::tools {

// Signals that are noted while this lives, instead of what they did; those that were ignored, as
// by nohup, stay so. Calls that they interrupt go on. One of these lives in a process at a time.
class NotedSignals {
 public:
  explicit NotedSignals(std::initializer_list<int> signals);
  ~NotedSignals();  // they do again what they did
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;
  // The last one that came since then; 0: none. From any thread.
  int last() const;
  void forget();

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  std::vector<Before> before_;
};

}  // namespace troupe::tools
