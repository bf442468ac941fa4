// gpu_check: shows on a machine with a GPU what cannot be shown without one. See tools/gpu-check.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>

#include "runtime/base/environment.h"
#include "tools/gpu_check/export_check.h"
#include "tools/gpu_check/runner.h"
#include "tools/gpu_check/update_check.h"
#include "train/cuda/device/cuda_library.h"
#include "train/cuda/device/device.h"

namespace {

using namespace troupe;              // NOLINT(google-build-using-namespace)
using namespace troupe::tools::gpu;  // NOLINT(google-build-using-namespace)

std::string this_program() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

int fail(const Status& status) {
  std::cerr << "gpu-check: " << status.to_string() << "\n";
  return exit_code(status.code());
}

Result<std::shared_ptr<const train::CudaLibrary>> load(const std::string& path) {
  if (path.empty()) return train::CudaLibrary::load(SystemEnvironment());
  return train::CudaLibrary::load(MapEnvironment(
      std::map<std::string, std::string, std::less<>>{{"TROUPE_CUDA_LIBRARY", path}}));
}

int list(const std::vector<std::string>& only) {
  double seconds = 0;
  for (const Check& check : selected_checks(only)) {
    seconds += check.seconds;
    std::cout << fmt::format("{:<40} {:>5.1f} s  {}\n", check.name, check.seconds, check.what);
  }
  std::cout << fmt::format("about {:.0f} s together, in this order\n", seconds);
  return 0;
}

int run(const RunOptions& options, bool as_json) {
  // Whether there is a device at all: one sentence instead of a failure of everything.
  const auto library = load(options.bench.library_path);
  if (!library.ok()) return fail(library.status());
  const auto devices = train::list_devices(**library, SystemEnvironment());
  if (!devices.ok()) return fail(devices.status());
  if (::mkdir(options.log_folder.c_str(), 0755) != 0 && errno != EEXIST)
    return fail(error(Code::kPermissionDenied, "the folder for logs, {}: {}", options.log_folder,
                      std::strerror(errno)));
  const auto results = run_checks(options, as_json ? std::cerr : std::cout);
  if (!results.ok()) return fail(results.status());
  int counts[3] = {};
  for (const CheckResult& r : *results) ++counts[static_cast<int>(r.verdict)];
  (as_json ? std::cerr : std::cout)
      << fmt::format("{} passed, {} failed, {} skipped; {}/results.json\n", counts[0], counts[1],
                     counts[2], options.log_folder);
  if (as_json) std::cout << results_json(*results) << "\n";
  return all_passed(*results) ? 0 : exit_code(Code::kActorError);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Checks of a GPU, in order of importance.", "gpu-check");
  RunOptions options;
  options.log_folder = "gpu-check-logs";
  bool listing = false, as_json = false, worker = false;
  int export_socket = -1, update_socket = -1;
  std::int64_t child_bytes = 0;
  app.add_flag("--list", listing, "print what would run, and run nothing");
  app.add_option("--only", options.only, "run the checks whose names contain one of these")
      ->delimiter(',');
  app.add_option("--seconds", options.seconds, "skip what no longer fits (480)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", as_json, "print the results as JSON when all are there");
  app.add_option("--library", options.bench.library_path,
                 "libtroupe_cuda.so (TROUPE_CUDA_LIBRARY, else beside the program)");
  app.add_option("--device", options.bench.device, "the GPU's index (0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--python", options.bench.python,
                 "a Python with PyTorch, and with transformers where the checks are to be against "
                 "Hugging Face (python3)");
  app.add_option("--logs", options.log_folder,
                 "folder for results.json and worker.log "
                 "(gpu-check-logs)");
  app.add_flag(
      "--rehearsal", options.bench.rehearsal,
      "small sizes, the CPU's very bits and no bars for times: for a library that computes "
      "on the CPU");
  app.add_flag("--kernels", options.bench.kernels,
               "with --rehearsal: the library computes on the CPU by the kernels of a GPU "
               "(TROUPE_FAKE_CUDA_KERNELS=phases): a GPU's tolerances in place of the CPU's bits")
      ->needs("--rehearsal");
  // Parts of a run, in processes of their own.
  app.add_flag("--worker", worker)->group("");
  app.add_option("--export-child", export_socket)->group("");
  app.add_option("--update-child", update_socket)->group("");
  app.add_option("--bytes", child_bytes)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : exit_code(Code::kInvalidArgument);
  }
  options.bench.program = this_program();
  if (listing) return list(options.only);
  if (!worker && export_socket < 0 && update_socket < 0) return run(options, as_json);
  auto library = load(options.bench.library_path);
  if (!library.ok()) return fail(library.status());
  // The same library in the processes that it starts.
  if (options.bench.library_path.empty()) options.bench.library_path = (*library)->path();
  const int device = options.bench.device;
  const Status status = [&] {
    if (export_socket >= 0) return run_export_child(*library, device, child_bytes, export_socket);
    if (update_socket >= 0) return run_update_child(*library, device, child_bytes, update_socket);
    Bench bench(*library, options.bench);
    return serve_checks(bench);
  }();
  return status.ok() ? 0 : fail(status);
}
