#include <algorithm>
#include <charconv>
#include <functional>
#include <mutex>

#include "lib/base/check.h"
#include "terrace/metrics.h"

namespace terrace {
namespace {

enum class MetricKind { kCounter, kGauge, kHistogram };

std::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// [a-zA-Z_:][a-zA-Z0-9_:]*, label names without the colon.
bool IsName(std::string_view name, bool colon) {
  if (name.empty()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon && c == ':');
    const bool digit = c >= '0' && c <= '9';
    if (!letter && !(digit && i > 0)) return false;
  }
  return true;
}

void AppendEscaped(std::string_view text, bool quotes, std::string& out) {
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
}

// a="x",b="y", sorted by name: the identity of a series, whatever order the caller gives labels in.
std::string LabelText(const MetricLabels& labels) {
  MetricLabels sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const auto& [name, value] : sorted) {
    TERRACE_CHECK(IsName(name, false)) << "label " << name;
    if (!text.empty()) text += ',';
    text.append(name).append("=\"");
    AppendEscaped(value, true, text);
    text += '"';
  }
  return text;
}

template <typename T>
void AppendNumber(T value, std::string& out) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  out.append(digits, end);
}

std::string JoinLabels(std::string_view first, std::string_view second) {
  std::string joined(first);
  if (!first.empty() && !second.empty()) joined += ',';
  return joined.append(second);
}

void AppendSeries(std::string_view name, std::string_view suffix, std::string_view labels,
                  std::string_view more_labels, std::string& out) {
  out.append(name).append(suffix);
  const std::string joined = JoinLabels(labels, more_labels);
  if (!joined.empty()) out.append("{").append(joined).append("}");
  out += ' ';
}

void AppendHistogram(std::string_view name, std::string_view labels, const Histogram& histogram,
                     std::string& out) {
  const std::vector<double>& bounds = histogram.upper_bounds();
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    cumulative += histogram.bucket(i);
    std::string bound = "le=\"";
    if (i < bounds.size())
      AppendNumber(bounds[i], bound);
    else
      bound += "+Inf";
    bound += '"';
    AppendSeries(name, "_bucket", labels, bound, out);
    AppendNumber(cumulative, out);
    out += '\n';
  }
  AppendSeries(name, "_sum", labels, "", out);
  AppendNumber(histogram.sum(), out);
  out += '\n';
  // The buckets' sum, not count(): a reader refuses a count that an update in between made differ from +Inf.
  AppendSeries(name, "_count", labels, "", out);
  AppendNumber(cumulative, out);
  out += '\n';
}

}  // namespace

Histogram::Histogram(std::span<const double> upper_bounds)
    : bounds_(upper_bounds.begin(), upper_bounds.end()),
      buckets_(std::make_unique<std::atomic<uint64_t>[]>(upper_bounds.size() + 1)) {
  TERRACE_CHECK(std::is_sorted(bounds_.begin(), bounds_.end())) << "bounds of a histogram must ascend";
}

void Histogram::Observe(double value) {
  const size_t i = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[i].fetch_add(1, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

// Families and series are only ever added, so a pointer to a metric stays valid as long as the registry.
struct MetricRegistry::Families {
  struct Series {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    MetricKind kind;
    std::string help;
    std::vector<double> bounds;
    std::map<std::string, Series> series;  // by LabelText

    void AppendTo(std::string_view name, std::string_view more_labels, std::string& out) const {
      for (const auto& [own_labels, one] : series) {
        const std::string labels = JoinLabels(own_labels, more_labels);
        if (one.histogram) {
          AppendHistogram(name, labels, *one.histogram, out);
          continue;
        }
        AppendSeries(name, "", labels, "", out);
        if (one.counter)
          AppendNumber(one.counter->value(), out);
        else
          AppendNumber(one.gauge->value(), out);
        out += '\n';
      }
    }
  };
  mutable std::mutex mutex;
  std::map<std::string, Family, std::less<>> by_name;

  Family& Get(std::string_view name, std::string_view help, MetricKind kind,
              std::span<const double> bounds = {}) {
    auto found = by_name.find(name);
    if (found == by_name.end()) {
      TERRACE_CHECK(IsName(name, true)) << "metric " << name;
      Family family{kind, std::string(help), {bounds.begin(), bounds.end()}, {}};
      found = by_name.emplace(std::string(name), std::move(family)).first;
    }
    TERRACE_CHECK(found->second.kind == kind) << "metric " << name << " is a " << KindName(found->second.kind)
                                              << ", asked for as a " << KindName(kind);
    return found->second;
  }
};

MetricRegistry::MetricRegistry() : families_(std::make_unique<Families>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter* MetricRegistry::GetCounter(std::string_view name, std::string_view help,
                                    const MetricLabels& labels) {
  std::lock_guard lock(families_->mutex);
  auto& series = families_->Get(name, help, MetricKind::kCounter).series[LabelText(labels)];
  if (!series.counter) series.counter = std::make_unique<Counter>();
  return series.counter.get();
}

Gauge* MetricRegistry::GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  std::lock_guard lock(families_->mutex);
  auto& series = families_->Get(name, help, MetricKind::kGauge).series[LabelText(labels)];
  if (!series.gauge) series.gauge = std::make_unique<Gauge>();
  return series.gauge.get();
}

Histogram* MetricRegistry::GetHistogram(std::string_view name, std::string_view help,
                                        std::span<const double> bounds, const MetricLabels& labels) {
  std::lock_guard lock(families_->mutex);
  Families::Family& family = families_->Get(name, help, MetricKind::kHistogram, bounds);
  auto& series = family.series[LabelText(labels)];
  if (!series.histogram) series.histogram = std::make_unique<Histogram>(family.bounds);
  return series.histogram.get();
}

std::string MetricRegistry::PrometheusText() const {
  const Labelled self{this, {}};
  return PrometheusText(std::span(&self, 1));
}

std::string MetricRegistry::PrometheusText(std::span<const Labelled> registries) {
  struct Text {
    MetricKind kind;
    std::string lines;
  };
  std::map<std::string, Text> families;
  // One registry is locked at a time.
  for (const auto& [registry, labels] : registries) {
    const std::string more_labels = LabelText(labels);
    std::lock_guard lock(registry->families_->mutex);
    for (const auto& [name, family] : registry->families_->by_name) {
      const auto [text, is_new] = families.try_emplace(name, Text{family.kind, {}});
      if (text->second.kind != family.kind) continue;
      std::string& out = text->second.lines;
      if (is_new) {
        out.append("# HELP ").append(name).append(" ");
        AppendEscaped(family.help, false, out);
        out.append("\n# TYPE ").append(name).append(" ").append(KindName(family.kind)).append("\n");
      }
      family.AppendTo(name, more_labels, out);
    }
  }
  std::string out;
  for (const auto& [name, text] : families) out += text.lines;
  return out;
}

int64_t MetricRegistry::Value(std::string_view name, const MetricLabels& labels) const {
  std::lock_guard lock(families_->mutex);
  const auto family = families_->by_name.find(name);
  if (family == families_->by_name.end()) return 0;
  const auto series = family->second.series.find(LabelText(labels));
  if (series == family->second.series.end()) return 0;
  if (series->second.counter) return static_cast<int64_t>(series->second.counter->value());
  if (series->second.gauge) return series->second.gauge->value();
  return 0;
}

}  // namespace terrace
