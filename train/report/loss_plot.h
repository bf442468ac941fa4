#pragma once
// training_loss.png: the logged values and their smoothed curve, as LLaMA-Factory's plot_loss.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Exponential moving average with weight 1.8 (σ(0.05 n) − 0.5) for n values, starting from the
// first: longer curves are smoothed more. Non-finite values are passed over.
std::vector<double> smooth(const std::vector<double>& values);

struct Curve {
  std::string title;    // "training loss of saves/tiny"
  std::string y_label;  // "loss"
  std::vector<double> steps;
  std::vector<double> values;  // as many; non-finite ones leave a gap
};

// A PNG of 640 × 480 pixels (6.4 × 4.8 in at 100 dpi).
Result<std::string> draw_curve(const Curve& curve);

// Draws training_KEY.png into `output_dir` for every key ("loss", "eval_loss") of which log_history
// has values. Returns the names of the files.
Result<std::vector<std::string>> plot_loss(FileSystem& files, const std::string& output_dir,
                                           const json::Array& log_history,
                                           const std::vector<std::string>& keys);

}  // namespace troupe::train
