#include "backends/remote/buffer_ledger.h"

#include <utility>

#include "lib/base/wait_until.h"

namespace terrace::remote {

// The control of what is lent: its memory is the lender's, which it holds.
struct BufferLedger::Loan : BufferControl {
  std::shared_ptr<Books> books;
  BufferRef lender;
  Use use = Use::kGet;
  uint64_t bytes = 0;

  static void Return(BufferControl* control) {
    Loan* loan = static_cast<Loan*>(control);
    const std::shared_ptr<Books> books = std::move(loan->books);
    const Use use = loan->use;
    const uint64_t bytes = loan->bytes;
    delete loan;  // gives the buffer back first: who waits for the books finds it free
    std::lock_guard lock(books->mutex);
    --(use == Use::kGet ? books->gets : books->puts);
    (use == Use::kGet ? books->get_bytes : books->put_bytes) -= bytes;
    books->returned.notify_all();
  }
};

BufferLedger::BufferLedger(uint64_t max_put_bytes) : max_put_bytes_(max_put_bytes) {}

BufferRef BufferLedger::Lend(BufferRef buffer, Use use, uint64_t bytes) {
  {
    std::lock_guard lock(books_->mutex);
    // One frame may exceed the limit by itself, else it could never be put.
    if (use == Use::kPut && books_->put_bytes != 0 && books_->put_bytes + bytes > max_put_bytes_) return {};
    ++(use == Use::kGet ? books_->gets : books_->puts);
    (use == Use::kGet ? books_->get_bytes : books_->put_bytes) += bytes;
  }
  Loan* loan = new Loan;
  loan->data = buffer.mutable_run().data();
  loan->size_bytes = buffer.size_bytes();
  loan->region_id = buffer.region_id();
  loan->release = &Loan::Return;
  loan->books = books_;
  loan->use = use;
  loan->bytes = bytes;
  loan->lender = std::move(buffer);
  return BufferRef(loan);
}

uint64_t BufferLedger::put_bytes() const {
  std::lock_guard lock(books_->mutex);
  return books_->put_bytes;
}

size_t BufferLedger::num_lent() const {
  std::lock_guard lock(books_->mutex);
  return books_->gets + books_->puts;
}

bool BufferLedger::AwaitAll(TimePoint deadline) const {
  std::unique_lock lock(books_->mutex);
  const auto all_back = [&] { return books_->gets + books_->puts == 0; };
  return WaitUntil(books_->returned, lock, deadline, all_back);
}

std::string BufferLedger::Describe() const {
  std::lock_guard lock(books_->mutex);
  return std::to_string(books_->gets) + " destinations of gets (" + std::to_string(books_->get_bytes) +
         " bytes), " + std::to_string(books_->puts) + " frames of puts (" +
         std::to_string(books_->put_bytes) + " bytes)";
}

}  // namespace terrace::remote
