#include <cstdio>

#include "training.h"

int main(int argc, char** argv) {
  // The processes of the trainers, and of what watches over them, are this program, too.
  if (auto code = troupe::host_main(argc, argv, tr::training_actors<Trainer>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();  // Cluster::connect(): one that runs
  tr::TrainingJob training = job("out");
  training.on_event = [](const tr::TrainingEvent& event) {
    if (event.kind == tr::TrainingEvent::Kind::kStep && event.step % 50 == 0)
      std::printf("step %d: loss %.3f\n", static_cast<int>(event.step), event.loss);
  };
  const auto result = tr::train(cluster, std::move(training), own_parts());
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
    return 1;
  }
  std::printf("%d steps; the tensors are in %s\n", static_cast<int>(result->steps),
              result->output_dir.c_str());
}
