#include "train/report/loss_plot.h"

#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr int kWidth = 640;
constexpr int kHeight = 480;
constexpr double kLeft = 80, kRight = 616, kTop = 52, kBottom = 420;
constexpr double kFontSize = 13, kTitleSize = 15;
constexpr int kTicksWanted = 6;
// The value range is widened by this share on both sides.
constexpr double kMargin = 0.05;

struct Color {
  double red, green, blue, alpha = 1;
};
// matplotlib's first colour, #1f77b4: raw values pale, the smoothed curve full.
constexpr Color kRaw{0x1f / 255.0, 0x77 / 255.0, 0xb4 / 255.0, 0.4};
constexpr Color kSmooth{0x1f / 255.0, 0x77 / 255.0, 0xb4 / 255.0};
constexpr Color kInk{0.1, 0.1, 0.1};
constexpr Color kGrid{0, 0, 0, 0.1};

// A linear scale from values to pixels with round ticks.
class Axis {
 public:
  Axis(const std::vector<double>& values, double margin, double begin_px, double end_px)
      : begin_px_(begin_px), end_px_(end_px) {
    bool any = false;
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      low_ = any ? std::min(low_, value) : value;
      high_ = any ? std::max(high_, value) : value;
      any = true;
    }
    if (!any) low_ = 0, high_ = 1;
    double span = high_ - low_;
    if (!(span > 0)) span = std::max(std::fabs(low_), 1.0);
    if (low_ == high_ || margin > 0) {
      const double widen = span * (low_ == high_ ? 0.5 : margin);
      low_ -= widen;
      high_ += widen;
    }
    const double rough = (high_ - low_) / kTicksWanted;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    const double lead = rough / power;
    tick_ = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  }

  double pixel(double value) const {
    return begin_px_ + (value - low_) / (high_ - low_) * (end_px_ - begin_px_);
  }

  std::vector<double> ticks() const {
    std::vector<double> ticks;
    for (double i = std::ceil(low_ / tick_); i * tick_ <= high_ + 1e-9 * tick_; ++i) {
      ticks.push_back(i == 0 ? 0 : i * tick_);
      if (ticks.size() > 4 * kTicksWanted) break;  // values so close that ticks coincide
    }
    return ticks;
  }

  std::string label(double tick) const {
    const double magnitude = std::max(std::fabs(low_), std::fabs(high_));
    if (magnitude >= 1e6 || magnitude < 1e-3) return fmt::format("{:.2e}", tick);
    const int digits = std::clamp(static_cast<int>(-std::floor(std::log10(tick_) + 1e-9)), 0, 6);
    return fmt::format("{:.{}f}", tick, digits);
  }

 private:
  double low_ = 0, high_ = 1, tick_ = 1;
  double begin_px_, end_px_;
};

enum class Anchor { kLeft, kCenter, kRight };

class Canvas {
 public:
  Canvas()
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, kWidth, kHeight)),
        cairo_(cairo_create(surface_)) {
    cairo_set_source_rgb(cairo_, 1, 1, 1);
    cairo_paint(cairo_);
    cairo_select_font_face(cairo_, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  }
  ~Canvas() {
    cairo_destroy(cairo_);
    cairo_surface_destroy(surface_);
  }
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;

  void line(double x0, double y0, double x1, double y1, const Color& color, double width) {
    set(color, width);
    cairo_move_to(cairo_, x0, y0);
    cairo_line_to(cairo_, x1, y1);
    cairo_stroke(cairo_);
  }

  // Through the finite points; a non-finite one leaves a gap.
  void curve(const std::vector<double>& x, const std::vector<double>& y, const Color& color,
             double width) {
    set(color, width);
    cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    bool drawing = false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool finite = std::isfinite(x[i]) && std::isfinite(y[i]);
      if (finite && drawing) cairo_line_to(cairo_, x[i], y[i]);
      if (finite && !drawing) cairo_move_to(cairo_, x[i], y[i]);
      drawing = finite;
    }
    cairo_stroke(cairo_);
  }

  void text(double x, double y, std::string_view text, Anchor anchor, double size,
            double angle = 0) {
    const std::string copy(text);
    cairo_set_font_size(cairo_, size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, copy.c_str(), &extents);
    const double share = anchor == Anchor::kLeft ? 0 : anchor == Anchor::kCenter ? 0.5 : 1;
    set(kInk, 1);
    cairo_save(cairo_);
    cairo_translate(cairo_, x, y);
    cairo_rotate(cairo_, angle);
    cairo_move_to(cairo_, -extents.x_advance * share, 0);
    cairo_show_text(cairo_, copy.c_str());
    cairo_restore(cairo_);
  }

  Result<std::string> png() {
    std::string bytes;
    const auto append = [](void* closure, const unsigned char* data, unsigned size) {
      static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(data), size);
      return CAIRO_STATUS_SUCCESS;
    };
    const cairo_status_t status = cairo_surface_write_to_png_stream(surface_, append, &bytes);
    if (status != CAIRO_STATUS_SUCCESS) {
      return error(Code::kInternal, "cannot draw the plot: {}", cairo_status_to_string(status));
    }
    return bytes;
  }

 private:
  void set(const Color& color, double width) {
    cairo_set_source_rgba(cairo_, color.red, color.green, color.blue, color.alpha);
    cairo_set_line_width(cairo_, width);
  }
  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

// Fits the title into the width: the end of a long path says more than its beginning.
std::string shortened(const std::string& title) {
  constexpr std::size_t kCharactersMax = 70;
  if (title.size() <= kCharactersMax) return title;
  std::size_t begin = title.size() - (kCharactersMax - 3);
  while (begin < title.size() && (title[begin] & 0xC0) == 0x80) ++begin;  // whole UTF-8 characters
  return "..." + title.substr(begin);
}

void draw_axes(Canvas& canvas, const Axis& x, const Axis& y, const Curve& curve) {
  for (const double tick : x.ticks()) {
    const double px = x.pixel(tick);
    if (px < kLeft - 0.5 || px > kRight + 0.5) continue;
    canvas.line(px, kTop, px, kBottom, kGrid, 1);
    canvas.line(px, kBottom, px, kBottom + 5, kInk, 1);
    canvas.text(px, kBottom + 20, x.label(tick), Anchor::kCenter, kFontSize);
  }
  for (const double tick : y.ticks()) {
    const double px = y.pixel(tick);
    if (px > kBottom + 0.5 || px < kTop - 0.5) continue;
    canvas.line(kLeft, px, kRight, px, kGrid, 1);
    canvas.line(kLeft - 5, px, kLeft, px, kInk, 1);
    canvas.text(kLeft - 9, px + 4.5, y.label(tick), Anchor::kRight, kFontSize);
  }
  canvas.line(kLeft, kBottom, kRight, kBottom, kInk, 1);
  canvas.line(kLeft, kTop, kLeft, kBottom, kInk, 1);
  canvas.text((kLeft + kRight) / 2, kHeight - 14, "step", Anchor::kCenter, kFontSize + 1);
  canvas.text(20, (kTop + kBottom) / 2, curve.y_label, Anchor::kCenter, kFontSize + 1, -M_PI / 2);
  canvas.text(kWidth / 2.0, 30, shortened(curve.title), Anchor::kCenter, kTitleSize);
}

void draw_legend(Canvas& canvas) {
  const double x = kRight - 120;
  canvas.line(x, kTop + 16, x + 26, kTop + 16, kRaw, 2);
  canvas.text(x + 34, kTop + 20.5, "original", Anchor::kLeft, kFontSize);
  canvas.line(x, kTop + 36, x + 26, kTop + 36, kSmooth, 2);
  canvas.text(x + 34, kTop + 40.5, "smoothed", Anchor::kLeft, kFontSize);
}

}  // namespace

std::vector<double> smooth(const std::vector<double>& values) {
  const double n = static_cast<double>(values.size());
  const double weight = 1.8 * (1 / (1 + std::exp(-0.05 * n)) - 0.5);
  std::vector<double> smoothed;
  double last = std::nan("");
  for (const double value : values) {
    if (std::isfinite(value)) {
      last = std::isfinite(last) ? last * weight + (1 - weight) * value : value;
    }
    smoothed.push_back(last);
  }
  return smoothed;
}

Result<std::string> draw_curve(const Curve& curve) {
  TROUPE_CHECK(curve.steps.size() == curve.values.size());
  const Axis x(curve.steps, 0, kLeft, kRight);
  const Axis y(curve.values, kMargin, kBottom, kTop);
  Canvas canvas;
  draw_axes(canvas, x, y, curve);
  const auto pixels = [](const Axis& axis, const std::vector<double>& values) {
    std::vector<double> out;
    for (const double value : values) out.push_back(axis.pixel(value));
    return out;
  };
  const auto columns = pixels(x, curve.steps);
  canvas.curve(columns, pixels(y, curve.values), kRaw, 1.5);
  canvas.curve(columns, pixels(y, smooth(curve.values)), kSmooth, 2);
  draw_legend(canvas);
  return canvas.png();
}

Result<std::vector<std::string>> plot_loss(FileSystem& files, const std::string& output_dir,
                                           const json::Array& log_history,
                                           const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  for (const auto& key : keys) {
    Curve curve{fmt::format("training {} of {}", key, output_dir), key, {}, {}};
    for (const auto& entry : log_history) {
      const auto step = json::find_number(entry, "step");
      const auto value = json::find_number(entry, key);
      if (!step || !value) continue;
      curve.steps.push_back(*step);
      curve.values.push_back(*value);
    }
    if (curve.values.empty()) continue;
    const auto png = TROUPE_TRY(draw_curve(curve));
    std::string name = fmt::format("training_{}.png", key);
    std::replace(name.begin(), name.end(), '/', '_');
    TROUPE_RETURN_IF_ERROR(write_file_atomically(files, join_path(output_dir, name), png));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace troupe::train
