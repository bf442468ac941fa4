// The same training, undisturbed and with a trainer killed in the middle: the same weights, to the
// bit.

#include <cstdio>
#include <fstream>
#include <iterator>

#include <troupe/chaos.h>

#include "training.h"

using namespace std::chrono_literals;
using troupe::Deadline;

std::string weights_in(const std::string& folder) {
  std::ifstream file(folder + "/model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, tr::training_actors<Trainer>)) return *code;

  auto cluster = troupe::Cluster::start_embedded({.num_cpus = 2}).value();
  const auto quiet = tr::train(cluster, job("test-out/quiet"), own_parts(), 60s);
  if (!quiet.ok()) {
    std::fprintf(stderr, "%s\n", quiet.status().to_string().c_str());
    return 1;
  }

  auto training = tr::start_training(cluster, job("test-out/struck"), own_parts()).value();
  auto trainer = training.trainer<Trainer>(1, Deadline::after(20s)).value();
  while (trainer.call<&Trainer::step>().get(30s).value() < 10) {
  }
  const auto process = troupe::process_of(trainer, Deadline::after(10s)).value();
  const bool killed = troupe::strike(process, troupe::ActorFault::kKill).ok();
  const auto struck = training.wait(Deadline::after(60s)).value();
  const bool same = !weights_in("test-out/quiet").empty() &&
                    weights_in("test-out/quiet") == weights_in("test-out/struck");
  std::printf("killed: %s, recovered: %s, %d steps, the same weights: %s\n", killed ? "yes" : "no",
              struck.recoveries == 1 ? "yes" : "no", static_cast<int>(struck.steps),
              same ? "yes" : "no");
  return killed && struck.recoveries == 1 && same && struck.steps == quiet->steps ? 0 : 1;
}
