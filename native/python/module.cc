// The only file that knows Python. Whatever can block releases the GIL here and nowhere else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "reduce/optimize.h"
#include "reduce/sum.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail;

namespace {

using Chunks = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
constexpr size_t kChunkColumns = 9;
constexpr double kSignalCheck = 0.1;  // Seconds a wait may keep Ctrl-C waiting.

constexpr int64_t kMuch = 256 * 1024;  // Bytes.

PyObject* engineError = nullptr;

std::byte* memoryAt(uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);
}

[[noreturn]] void raiseFailure(const Job& job) {
  const auto failure = job.failure().value_or(Failure{-1, "stopped", 0});
  const nb::tuple args = nb::make_tuple(failure.peer, failure.reason, failure.step);
  PyErr_SetObject(engineError, args.ptr());
  throw nb::python_error();
}

// Calls `attempt(seconds)` with the GIL released until it gives a value, letting signals through between
// attempts.
template <typename Attempt>
auto patiently(double seconds, Attempt attempt) -> decltype(attempt(0.0)) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const double left = std::chrono::duration<double>(until - std::chrono::steady_clock::now()).count();
    decltype(attempt(0.0)) result;
    {
      nb::gil_scoped_release release;
      result = attempt(std::clamp(left, 0.0, kSignalCheck));
    }
    if (result.has_value() || left <= kSignalCheck) return result;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

bool waitFor(Job& job, const std::vector<int>& tensors, Iteration iteration, double seconds) {
  const auto result = patiently(seconds, [&](double s) -> std::optional<Waited> {
    const Waited waited = job.wait(tensors, iteration, s);
    return waited == Waited::TimedOut ? std::nullopt : std::optional(waited);
  });
  if (result == Waited::Failed) raiseFailure(job);
  return result.has_value();
}

// For threads that signals do not concern: one wait, however long.
uint64_t newsOf(Job& job, uint64_t seen, double seconds) {
  std::pair<Waited, uint64_t> result;
  {
    nb::gil_scoped_release release;
    result = job.waitNews(seen, seconds);
  }
  if (result.first == Waited::Failed) raiseFailure(job);
  return result.second;
}

std::optional<double> squaresOf(Job& job, Iteration iteration, double seconds) {
  double total = 0;
  const auto result = patiently(seconds, [&](double s) -> std::optional<Waited> {
    const auto [waited, found] = job.waitSquares(iteration, s);
    total = found;
    return waited == Waited::TimedOut ? std::nullopt : std::optional(waited);
  });
  if (result == Waited::Failed) raiseFailure(job);
  return result.has_value() ? std::optional(total) : std::nullopt;
}

int waitGet(Job& job, int ticket, double seconds) {
  const auto result = patiently(seconds, [&](double s) -> std::optional<Got> {
    const Got got = job.waitGet(ticket, s);
    return got == Got::TimedOut && !job.failure() ? std::nullopt : std::optional(got);
  });
  if (result == Got::TimedOut) raiseFailure(job);
  return static_cast<int>(result.value_or(Got::TimedOut));
}

using StepList = std::vector<std::vector<std::pair<int, std::vector<Node>>>>;
using TensorList = std::vector<std::tuple<int64_t, int, int>>;

std::vector<Program> programsFrom(const StepList& programs) {
  std::vector<Program> found;
  for (const auto& program : programs) {
    Program steps;
    for (const auto& [op, peers] : program) {
      if (op < 0 || op > static_cast<int>(Op::Offer)) throw nb::value_error("table: unknown step");
      steps.push_back({static_cast<Op>(op), peers});
    }
    found.push_back(std::move(steps));
  }
  return found;
}

Table tableFrom(const StepList& programs, const TensorList& tensors, const Chunks& chunks,
                std::vector<std::vector<int32_t>> transfers, std::vector<int32_t> windows, int divisor) {
  if (chunks.shape(0) > 0 && chunks.shape(1) != kChunkColumns) {
    throw nb::value_error("table: chunks need 9 columns");
  }
  if (windows.size() != transfers.size()) throw nb::value_error("table: one window a transfer");
  Table table;
  table.programs = programsFrom(programs);
  for (const auto& [nbytes, type, group] : tensors) {
    if (type < 0 || type > 3) throw nb::value_error("table: unknown dtype");
    table.tensors.push_back({nbytes, static_cast<DType>(type), group, divisor});
  }
  for (size_t i = 0; i < chunks.shape(0); ++i) {
    const int64_t* row = chunks.data() + i * kChunkColumns;
    table.chunks.push_back({.tensor = static_cast<int32_t>(row[0]),
                            .offset = row[1],
                            .nbytes = row[2],
                            .program = static_cast<int32_t>(row[3]),
                            .lane = static_cast<int32_t>(row[4]),
                            .push = static_cast<Priority>(row[5]),
                            .pull = static_cast<Priority>(row[6]),
                            .transfer = static_cast<int32_t>(row[7]),
                            .pullWindow = static_cast<int32_t>(row[8])});
  }
  table.transfers = std::move(transfers);
  table.windows = std::move(windows);
  return table;
}

nb::dict countersOf(const Job& job) {
  const Counters& c = job.counters();
  nb::dict result;
  result["bytes_sent"] = c.bytesSent.load();
  result["bytes_received"] = c.bytesReceived.load();
  result["frames_sent"] = c.framesSent.load();
  result["frames_received"] = c.framesReceived.load();
  result["chunks_summed"] = c.chunksSummed.load();
  result["updates"] = c.updates.load();
  result["busy_ns"] = job.busyNs();
  return result;
}

nb::list eventsOf(Job& job) {
  nb::list result;
  for (const Event& e : job.events()) {
    result.append(nb::make_tuple(int(e.kind), e.tensor, e.chunk, e.peer, e.iteration, e.start, e.end,
                                 e.nbytes, e.priority));
  }
  return result;
}

std::map<Priority, uint64_t> sentOf(Job& job) {
  nb::gil_scoped_release release;
  return job.sentByPriority();
}

nb::list pathsOf(Job& job) {
  std::vector<Path> paths;
  {
    nb::gil_scoped_release release;
    paths = job.paths();
  }
  nb::list result;
  for (const Path& p : paths)
    result.append(nb::make_tuple(p.peer, p.lane, p.info.rttSeconds, p.info.bandwidth, p.info.busySeconds,
                                 p.info.acked));
  return result;
}

Hyper hyperFrom(const std::vector<double>& v) {
  if (v.size() != 7)
    throw nb::value_error("hyper: seven values: lr, momentum, dampening, weight_decay, beta1, beta2, eps");
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native engine; use it through dovetail.engine.";
  nb::set_leak_warnings(false);  // A training job lives until its process ends, and says goodbye then.
  engineError = PyErr_NewExceptionWithDoc(
      "dovetail._native.EngineError", "The job has failed; args are (peer, reason, step).", nullptr, nullptr);
  m.attr("EngineError") = nb::borrow(engineError);

  nb::class_<Job>(m, "Job")
      .def(
          "table",
          [](Job& job, const StepList& programs, const TensorList& tensors, const Chunks& chunks,
             std::vector<std::vector<int32_t>> transfers, std::vector<int32_t> windows) {
            job.setTable(tableFrom(programs, tensors, chunks, std::move(transfers), std::move(windows),
                                   job.contributors()));
          },
          "programs"_a, "tensors"_a, "chunks"_a, "transfers"_a, "windows"_a)
      .def(
          "extend",
          [](Job& job, const StepList& programs, const TensorList& tensors, const Chunks& chunks,
             std::vector<std::vector<int32_t>> transfers, std::vector<int32_t> windows, int divisor) {
            Table more = tableFrom(programs, tensors, chunks, std::move(transfers), std::move(windows),
                                   std::max(1, divisor));
            nb::gil_scoped_release release;
            job.extendTable(std::move(more));
          },
          "programs"_a, "tensors"_a, "chunks"_a, "transfers"_a, "windows"_a, "divisor"_a,
          "Add to the table of a running job; numbers in it count on from what is there.")
      .def("retire", &Job::retire, "tensors"_a,
           "Complete here, and never submitted again: free their chunks.")
      .def(
          "reroute",
          [](Job& job, const StepList& programs, const std::vector<int32_t>& chosen) {
            std::vector<Program> more = programsFrom(programs);
            nb::gil_scoped_release release;
            job.reroute(std::move(more), chosen);
          },
          "programs"_a, "chosen"_a, "Between iterations: chunk c follows program chosen[c] from now on.")
      .def(
          "rule",
          [](Job& job, int kind, uint32_t flags) {
            if (kind < 0 || kind > 3) throw nb::value_error("rule: 0 mean, 1 sgd, 2 adam, 3 adamw");
            job.setRule(static_cast<Rule>(kind), flags);
          },
          "kind"_a, "flags"_a = 0)
      .def("link", &Job::addLink, "peer"_a, "lane"_a, "fd"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("start", &Job::start, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "bind", [](Job& job, int tensor, uintptr_t at) { job.bind(tensor, memoryAt(at)); }, "tensor"_a,
          "ptr"_a)
      .def(
          "put",
          [](Job& job, int tensor, int slot, uintptr_t at, uint32_t step) {
            job.put(tensor, slot, memoryAt(at), step);
          },
          "tensor"_a, "slot"_a, "ptr"_a, "step"_a)
      .def(
          "get",
          [](Job& job, int tensor, int slot, uintptr_t at, Iteration version) {
            return job.get(tensor, slot, memoryAt(at), version);
          },
          "tensor"_a, "slot"_a, "ptr"_a, "version"_a = 0)
      .def("wait_get", &waitGet, "ticket"_a, "timeout"_a,
           "0 = timed out, 1 = the value is in memory, 2 = the root has no such state yet.")
      .def("cancel_get", &Job::cancelGet, "ticket"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("get_step", &Job::getStep, "tensor"_a)
      .def(
          "hyper",
          [](Job& job, Iteration iteration, int group, const std::vector<double>& values) {
            job.hyper(iteration, group, hyperFrom(values));
          },
          "iteration"_a, "group"_a, "values"_a)
      .def(
          "submit",
          [](Job& job, int tensor, Iteration iteration, uintptr_t at, bool more) {
            // Much to send wakes the loop's thread for long, at once and maybe on this very core.
            std::optional<nb::gil_scoped_release> release;
            if (job.bytesOf(tensor) >= kMuch) release.emplace();
            job.submit(tensor, iteration, memoryAt(at), more);
          },
          "tensor"_a, "iteration"_a, "ptr"_a, "more"_a = false)
      .def("backward_done", &Job::backwardDone, "iteration"_a)
      .def("release", &Job::release, "iteration"_a)
      .def("wait", &waitFor, "tensors"_a, "iteration"_a, "timeout"_a)
      .def("news", &newsOf, "seen"_a, "timeout"_a,
           "Waits for more news than `seen`: tensors that were completed, and nudges; how much there is.")
      .def("nudge", &Job::nudge)
      .def("watch_squares", &Job::watchSquares, "iteration"_a)
      .def("squares", &squaresOf, "iteration"_a, "timeout"_a,
           "The sum of squares of this node's results of a watched iteration; None = timed out.")
      .def("completed", &Job::completed, "tensor"_a)
      .def("absent", &Job::absent, "tensor"_a)
      .def("failure",
           [](const Job& job) -> std::optional<std::tuple<Node, std::string, Iteration>> {
             const auto failure = job.failure();
             if (!failure) return std::nullopt;
             return std::make_tuple(failure->peer, failure->reason, failure->step);
           })
      .def("fail", &Job::fail, "peer"_a, "reason"_a)
      .def("events", &eventsOf,
           "(kind, tensor, chunk, peer, iteration, start_ns, end_ns, nbytes, priority); kind 0 send, 1 "
           "receive, 2 update.")
      .def("paths", &pathsOf,
           "(peer, lane, rtt seconds, delivered bytes/s, busy seconds, bytes acked) of every link, as the "
           "kernel sees it.")
      .def("counters", &countersOf)
      .def("sent_by_priority", &sentOf, "Payload bytes.")
      .def("close", &Job::close, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Engine>(m, "Engine")
      .def(
          "__init__",
          [](Engine* self, int threads, double rate, int credit, bool trace) {
            if (threads < 1) throw nb::value_error("Engine: one thread or more");
            if (!(rate >= 0)) throw nb::value_error("Engine: the rate is 0 (unlimited) or more bytes/s");
            new (self) Engine(threads, rate, credit, trace);
          },
          "threads"_a, "rate"_a = 0.0, "credit"_a = 0, "trace"_a = false)
      .def(
          "job",
          [](const Engine& engine, std::string name, Node node, std::vector<std::string> labels,
             int contributors, bool deterministic, double timeout) {
            return engine.job({.name = std::move(name),
                               .node = node,
                               .labels = std::move(labels),
                               .contributors = std::max(1, contributors),
                               .deterministic = deterministic,
                               .timeoutSeconds = timeout});
          },
          "name"_a, "node"_a, "labels"_a, "contributors"_a, "deterministic"_a = false, "timeout"_a = 0.0,
          nb::keep_alive<0, 1>());

  // The kernels by themselves, so that tests can hold them against torch's formulas.
  m.def(
      "apply_update",
      [](int type, int rule, uint32_t flags, const std::vector<double>& hyper, uint32_t step, double factor,
         bool first, uintptr_t sum, uintptr_t value, uintptr_t state1, uintptr_t state2, size_t count) {
        const Update update{static_cast<Rule>(rule), flags, hyperFrom(hyper), step, factor, first};
        applyUpdate(static_cast<DType>(type), update, memoryAt(sum), memoryAt(value), memoryAt(state1),
                    memoryAt(state2), count);
      },
      "dtype"_a, "rule"_a, "flags"_a, "hyper"_a, "step"_a, "factor"_a, "first"_a, "sum"_a, "value"_a,
      "state1"_a, "state2"_a, "count"_a);
  m.def("start_sum", [](int type, uintptr_t sum, uintptr_t values, size_t count) {
    startSum(static_cast<DType>(type), memoryAt(sum), memoryAt(values), count);
  });
  m.def("add_to", [](int type, uintptr_t sum, uintptr_t values, size_t count) {
    addTo(static_cast<DType>(type), memoryAt(sum), memoryAt(values), count);
  });
  m.def("finish_sum", [](int type, uintptr_t sum, uintptr_t out, size_t count, double factor) {
    finishSum(static_cast<DType>(type), memoryAt(sum), memoryAt(out), count, factor);
  });
}
