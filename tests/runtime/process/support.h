#pragma once
// Small programs to start in tests.

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "runtime/process/child.h"
#include "runtime/process/output.h"
#include "runtime/process/spawn.h"

namespace troupe::tests {

inline Deadline patience() { return Deadline::after(std::chrono::seconds(10)); }

inline process::SpawnOptions shell(const std::string& script) {
  process::SpawnOptions options;
  options.path = "/bin/sh";
  options.argv = {"sh", "-c", script};
  return options;
}

// Everything until all writers have closed it.
inline std::string read_all(UniqueFd reader) {
  std::string text;
  char chunk[512];
  ssize_t count;
  while ((count = ::read(reader.get(), chunk, sizeof(chunk))) > 0) {
    text.append(chunk, static_cast<std::size_t>(count));
  }
  return text;
}

struct Ran {
  wire::ExitStatus exit;
  std::string output;
};

// Runs a program to its end with its standard output caught.
inline Ran run(process::SpawnOptions options) {
  auto pipe = process::make_pipe().value();
  options.descriptors.push_back({pipe.writer.get(), 1});
  auto child = process::spawn(options);
  REQUIRE_MESSAGE(child.ok(), child.status().to_string());
  pipe.writer.reset();
  Ran ran;
  ran.output = read_all(std::move(pipe.reader));
  ran.exit = process::wait(*child, patience()).value();
  return ran;
}

}  // namespace troupe::tests
