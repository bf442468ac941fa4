#pragma once
// An NVML in host memory behind the same table of functions: GPUs as a test describes them.

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "scheduler/node/nvml.h"

namespace troupe::scheduler::tests {

// One at a time: the functions have no place for a pointer to it. Any thread may change it with
// its lock.
class FakeNvml {
 public:
  struct Gpu {
    std::string uuid;
    std::string name = "NVIDIA H200";
    unsigned bus = 0;
    unsigned long long total = 141ULL << 30;
    unsigned long long used = 600ULL << 20;
    std::vector<nvml::ProcessInfo> processes;
    nvml::Return answer = nvml::kSuccess;  // to whatever is asked about it
    bool mig = false;
    std::vector<Gpu> instances;  // whose `bus` is the number of the GPU instance
    std::vector<int> nvlinks;    // the GPU that each of its links leads to; -1: a switch
  };
  FakeNvml();
  ~FakeNvml();
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  // All of it.
  nvml::Table table() const;
  // "GPU-0000…0N", on bus N + 1.
  static Gpu gpu(unsigned number);
  static std::string uuid(unsigned number);
  void report(unsigned gpu, unsigned long long type, unsigned long long data,
              unsigned gpu_instance = nvml::kNoInstance);

  std::mutex mutex;
  nvml::Return init_answer = nvml::kSuccess;
  nvml::Return processes_answer = nvml::kSuccess;
  std::vector<Gpu> gpus;
  std::map<std::pair<unsigned, unsigned>, int> ancestors;  // by the smaller number first
  bool peer_access = true;
  bool switched = false;  // NVLink reaches everybody
  int inits = 0, shutdowns = 0;
  int event_sets = 0;
  std::vector<unsigned long long> registered;
  std::vector<nvml::Device> listened_to;  // of the newest event set
  std::deque<nvml::EventData> events;
  std::condition_variable event_came;
};

}  // namespace troupe::scheduler::tests
