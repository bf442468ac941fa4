// Runs on the tests' GPU, which computes as the CPU does: the same bits, whatever dies on the way.

#include <algorithm>
#include <map>

#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {
namespace {

// A GPU for tests, and nothing of it left at the end.
class TestDevices {
 public:
  explicit TestDevices(int devices, bool can_export = true) {
    troupe::tests::fake_cuda_reset({.devices = devices, .can_export_memory = can_export});
  }
  ~TestDevices() {
    CHECK(troupe::tests::fake_cuda_left().empty());
    for (const std::string& line : troupe::tests::fake_cuda_left()) MESSAGE(line);
    troupe::tests::fake_cuda_reset();
  }
};

void check_same(const std::string& output, const std::string& expected) {
  const std::string weights = file(expected + "/model.safetensors");
  CHECK(weights.size() > 1000);
  CHECK((file(output + "/model.safetensors") == weights));
  CHECK(step_lines(output) == step_lines(expected));
}

RunChange strategy(const std::string& name, int world, int devices, bool bf16 = false) {
  return {.world = world,
          .batch = 1,
          .accumulation = 2,
          .change =
              [name, bf16](RunBundle& bundle) {
                bundle.config.sharding.strategy = name;
                bundle.config.training.max_steps = 5;
                if (bf16) bundle.config.model.compute = Precision::kBfloat16;
              },
          .devices = devices};
}

// Activations are bf16 there, which rounds more than the CPU does.
void check_near(const std::string& output, const std::string& expected) {
  const auto got = steps(output), wanted = steps(expected);
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].loss == doctest::Approx(wanted[i].loss).epsilon(3e-3));
    CHECK(got[i].grad_norm == doctest::Approx(wanted[i].grad_norm).epsilon(5e-2));
  }
}

TEST_CASE("every strategy on GPUs gives the bits of the CPU, in bf16 those of any other") {
  std::map<int, std::string> bf16_weights;  // by world size
  for (const auto& [name, world] : std::vector<std::pair<std::string, int>>{
           {"ddp", 1}, {"ddp", 2}, {"zero1", 2}, {"zero2", 2}, {"zero3", 4}, {"ddp", 4}}) {
    for (const bool bf16 : {false, true}) {
      CAPTURE(name);
      CAPTURE(bf16);
      troupe::tests::TemporaryDirectory dir;
      train(dir.file("cpu"), strategy(name, world, 0, bf16));
      const TestDevices devices(world, false);
      train(dir.file("gpu"), strategy(name, world, world, bf16));
      if (!bf16) {
        check_same(dir.file("gpu"), dir.file("cpu"));
        continue;
      }
      check_near(dir.file("gpu"), dir.file("cpu"));
      const std::string weights = file(dir.file("gpu/model.safetensors"));
      CHECK((bf16_weights.emplace(world, weights).first->second == weights));
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests
