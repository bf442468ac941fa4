#pragma once

#include <signal.h>

#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "troupe/detail/mutex.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

// Signals that are noted while this lives, instead of what they did; those that were ignored, as
// by nohup, stay so. Calls that they interrupt go on. One of these lives in a process at a time.
class NotedSignals {
 public:
  explicit NotedSignals(std::initializer_list<int> signals);
  ~NotedSignals();
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;
  // The last one that came since then; 0: none. From any thread.
  int last() const;
  void forget();
  // Readable when one has come.
  int fd() const { return came_.get(); }
  // They do again what they did. From any thread.
  void give_back() TROUPE_EXCLUDES(mutex_);

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  UniqueFd came_;
  Mutex mutex_;
  std::vector<Before> before_ TROUPE_GUARDED_BY(mutex_);
};

// Ctrl-C, SIGTERM and the like remove this folder before they end the process, while this lives.
// What writes into it need not look for them, and does not come to see what became of it.
class RemovedAtSignal {
 public:
  explicit RemovedAtSignal(std::string folder);
  ~RemovedAtSignal();
  RemovedAtSignal(const RemovedAtSignal&) = delete;
  RemovedAtSignal& operator=(const RemovedAtSignal&) = delete;

 private:
  void wait_for_signal();

  const std::string folder_;
  NotedSignals signals_{SIGINT, SIGTERM, SIGHUP};
  UniqueFd over_;
  std::thread thread_;
};

}  // namespace troupe::tools
