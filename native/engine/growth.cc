// The table of a job: given once, and added to, rerouted or cut while the job runs.
#include <functional>
#include <iterator>
#include <stdexcept>

#include "engine/job.h"
#include "engine/shard.h"

namespace dovetail {

void Job::setTable(Table table) {
  if (started_) throw std::logic_error("the table is fixed once the job has started; extend it");
  append(std::move(table));
  planned_ = table_.chunks.size();
}

void Job::extendTable(Table more) {
  withLoopsParked([&] {
    std::lock_guard lock(mutex_);
    append(std::move(more));
    for (auto& shard : shards_) shard->grow();
  });
  for (auto& shard : shards_) shard->loop().post([&s = *shard] { s.replayUnborn(); });
}

void Job::reroute(std::vector<Program> more, const std::vector<int32_t>& programs) {
  if (rule_ != Rule::Mean) throw std::logic_error("masters stay where their state is");
  withLoopsParked([&] {
    std::lock_guard lock(mutex_);
    const size_t known = table_.programs.size() + more.size();
    if (programs.size() > table_.chunks.size()) throw std::invalid_argument("more programs than chunks");
    for (size_t c = 0; c < programs.size(); ++c) {
      if (programs[c] < 0 || static_cast<size_t>(programs[c]) >= known || table_.chunks[c].program < 0)
        throw std::invalid_argument("a chunk cannot follow a program that does not exist");
    }
    for (const auto& shard : shards_) {
      if (!shard->resting(programs.size())) throw std::logic_error("a chunk is on its way");
    }
    noteGates(more);
    for (Program& program : more) table_.programs.push_back(std::move(program));
    for (size_t c = 0; c < programs.size(); ++c) table_.chunks[c].program = programs[c];
    for (auto& shard : shards_) shard->reroute(programs);
  });
}

void Job::retire(const std::vector<int>& tensors) {
  for (const int tensor : tensors) requireTensor(tensor, "retire");
  for (auto& shard : shards_) shard->loop().post([&s = *shard, tensors] { s.retire(tensors); });
}

void Job::noteGates(const std::vector<Program>& programs) {
  for (const Program& program : programs) {
    for (const Step& step : program) gated_ = gated_ || step.op == Op::Gate || step.op == Op::Ask;
  }
}

void Job::append(Table more) {
  const size_t tensors = table_.tensors.size() + more.tensors.size();
  const size_t transfers = table_.transfers.size() + more.transfers.size();
  const size_t programs = table_.programs.size() + more.programs.size();
  for (const ChunkSpec& chunk : more.chunks) {
    const bool known = chunk.tensor >= 0 && static_cast<size_t>(chunk.tensor) < tensors &&
                       chunk.transfer >= 0 && static_cast<size_t>(chunk.transfer) < transfers &&
                       (chunk.program < 0 || static_cast<size_t>(chunk.program) < programs);
    if (!known)
      throw std::invalid_argument("a chunk names a tensor, program or transfer that does not exist");
  }
  const auto moveOver = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  noteGates(more.programs);
  const size_t firstChunk = table_.chunks.size(), firstTransfer = table_.transfers.size();
  moveOver(table_.programs, more.programs);
  moveOver(table_.tensors, more.tensors);
  moveOver(table_.chunks, more.chunks);
  moveOver(table_.transfers, more.transfers);
  moveOver(table_.windows, more.windows);
  transfersOf_.resize(tensors);
  const size_t firstTensor = tensors_.size();
  while (tensors_.size() < tensors) tensors_.emplace_back();
  for (size_t t = firstTransfer; t < transfers; ++t) {
    missing_.push_back(static_cast<int>(table_.transfers[t].size()));
    for (const int32_t tensor : table_.transfers[t])
      transfersOf_.at(static_cast<size_t>(tensor)).push_back(static_cast<int>(t));
  }
  sizes_.resize(transfers);
  for (size_t c = firstChunk; c < table_.chunks.size(); ++c) {
    const ChunkSpec& chunk = table_.chunks[c];
    if (chunk.offset < 0 || chunk.nbytes < 0 ||
        chunk.offset + chunk.nbytes > table_.tensors[static_cast<size_t>(chunk.tensor)].nbytes) {
      throw std::invalid_argument("a chunk reaches outside its tensor");
    }
    if (chunk.program < 0) continue;
    ++tensors_[static_cast<size_t>(chunk.tensor)].chunks;
    sizes_.at(static_cast<size_t>(chunk.transfer)) += chunk.nbytes;
  }
  for (size_t t = firstTensor; t < tensors; ++t)
    tensors_[t].left[0] = tensors_[t].left[1] = tensors_[t].chunks;
  tensorCount_ = tensors;
}

void Job::withLoopsParked(const std::function<void()>& task) {
  static std::mutex parking;  // Two jobs that park the same loops one by one would wait for each other.
  std::lock_guard onlyOne(parking);
  std::mutex mutex;
  std::condition_variable turned;
  size_t parked = 0, gone = 0;
  bool done = false;
  for (auto& shard : shards_) {
    shard->loop().post([&] {
      std::unique_lock lock(mutex);
      ++parked;
      turned.notify_all();
      turned.wait(lock, [&] { return done; });
      ++gone;
      turned.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  turned.wait(lock, [&] { return parked == shards_.size(); });
  try {
    task();
  } catch (...) {
    done = true;
    turned.notify_all();
    turned.wait(lock, [&] { return gone == shards_.size(); });
    throw;
  }
  done = true;
  turned.notify_all();
  turned.wait(lock, [&] { return gone == shards_.size(); });
}

}  // namespace dovetail
