#pragma once
// Two machines, as network namespaces with a cable between them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::tests {

// 10.213.N.1 in the first namespace and 10.213.N.2 in the second, on the ends of a veth pair. Goes
// with the object; one at a time in a process.
class TwoMachines {
 public:
  // Nothing, said aloud, where this user may not make them.
  static std::unique_ptr<TwoMachines> make();
  ~TwoMachines();
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;

  // side: 0 or 1.
  std::string address(int side) const;
  // What to put before a command so that it runs on that machine.
  std::vector<std::string> inside(int side) const;
  // `command` as it runs on that machine.
  std::vector<std::string> inside(int side, const std::vector<std::string>& command) const;
  // Cuts the cable, or joins it again.
  void cut() const;
  void join() const;
  // What the machine has put on the cable so far.
  std::uint64_t bytes_sent(int side) const;

 private:
  TwoMachines();
  std::string name(int side) const;
  std::string interface(int side) const;
  const std::string id_;
};

}  // namespace troupe::tests
