// The ring of features, its table, and its file: see resemblance.hpp. File: one page of header | buckets | rows.
// Only the header is checksummed. Whatever else is damaged gives a wrong hint, or none: positions are masked to the
// table's size, and the caller looks every prefix up. So pages are written in any order and never synced.
#include "resemblance.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>

namespace ohdiff {
namespace {

static_assert(std::endian::native == std::endian::little, "the file holds little-endian words as they lie in memory");

constexpr char kMagic[8] = {'O', 'H', 'D', 'R', 'E', 'S', 'E', 'M'};
constexpr std::uint32_t kVersion = 1;
// As many slots as rows have indexed features: a full ring then loses about one entry in ten, its oldest ones, and a
// row needs only one of its entries to be found.
constexpr std::uint64_t kBucketsPerRowDivisor = 2;
static_assert(sizeof(ResemblanceBucket) / sizeof(u32) == kIndexedFeatures * kBucketsPerRowDivisor);
// A feature that many chunks share (a licence at the top of each file) keeps its newest rows only. One would do:
// 9.66 MB against 9.62 with four, and 9.62 with sixteen, in the measurement above.
constexpr int kRowsPerFeature = 4;
constexpr std::uint64_t kFirstCapacity = 4096;
constexpr std::uint64_t kLinesOffset = PagedLines::kPageSize;
constexpr std::uint64_t kBytesPerChunk = sizeof(ResemblanceRow) + sizeof(ResemblanceBucket) / kBucketsPerRowDivisor;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t capacity;
  std::uint64_t added;
  TableTag tag;
  std::uint64_t checksum;  // of the fields above
};
static_assert(sizeof(Header) == 72);

// The finaliser of MurmurHash3: a bijection whose every output bit depends on every input bit.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCDu;
  value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53u;
  return value ^ (value >> 33);
}

std::uint64_t header_checksum(const Header& header) {
  std::uint64_t words[offsetof(Header, checksum) / sizeof(std::uint64_t)];
  std::memcpy(words, &header, sizeof words);
  std::uint64_t sum = 0;
  for (const auto word : words) sum = mixed(sum ^ word) + 0x9E3779B97F4A7C15u;
  return sum;
}

Header make_header(const ResemblanceRing& ring, const TableTag& tag) {
  Header header{.magic = {}, .version = kVersion, .reserved = 0, .capacity = ring.capacity(), .added = ring.added(),
                .tag = tag, .checksum = 0};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.checksum = header_checksum(header);
  return header;
}

bool is_capacity(std::uint64_t value) {
  return value >= kResemblanceChunksMin && value <= kResemblanceChunksMax && std::has_single_bit(value);
}

std::uint64_t file_size_of(std::uint64_t capacity) { return kLinesOffset + capacity * kBytesPerChunk; }

// False for a file that is not ours, or no longer.
bool read_header(const TableFile& file, const TableTag& tag, Header& header) {
  if (file.size() < kLinesOffset) return false;
  file.read(0, &header, sizeof header);
  return std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.version == kVersion &&
         header.checksum == header_checksum(header) && header.tag == tag && is_capacity(header.capacity) &&
         file.size() == file_size_of(header.capacity);
}

u32 count_equal(const u32* left, const u32* right) {
  u32 equal = 0;
  for (u32 i = 0; i < feature_count; ++i) equal += left[i] == right[i];
  return equal;
}

bool has_samples(const u32* features) {
  return std::any_of(features, features + feature_count, [](u32 feature) { return feature != 0; });
}

}  // namespace

PagedLines::PagedLines(std::uint64_t line_count) : size_(line_count * 64), pages_(size_ / kPageSize, kLoaded) {
  void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::uint8_t*>(memory);
}

PagedLines::~PagedLines() { ::munmap(memory_, size_); }

void PagedLines::load_from(const TableFile& file, std::uint64_t offset) {
  file_ = &file;
  offset_ = offset;
  std::fill(pages_.begin(), pages_.end(), std::uint8_t{0});
}

void PagedLines::load(std::size_t page) {
  auto* into = memory_ + page * kPageSize;
  try {
    file_->read(offset_ + page * kPageSize, into, kPageSize);
  } catch (const TableError&) {
    std::memset(into, 0, kPageSize);  // the file was cut short since it was opened, or the disk fails
  }
  pages_[page] |= kLoaded;
}

void PagedLines::save(const TableFile& file, std::uint64_t offset) const {
  const auto is_to_save = [](std::uint8_t page) { return (page & kChanged) != 0; };
  for (auto first = pages_.begin(); (first = std::find_if(first, pages_.end(), is_to_save)) != pages_.end();) {
    const auto last = std::find_if_not(first, pages_.end(), is_to_save);
    const auto at = static_cast<std::uint64_t>(first - pages_.begin()) * kPageSize;
    file.write(offset + at, memory_ + at, static_cast<std::size_t>(last - first) * kPageSize);
    first = last;
  }
}

void PagedLines::mark_saved() {
  for (auto& page : pages_) page &= static_cast<std::uint8_t>(~kChanged);
}

bool PagedLines::is_changed() const {
  return std::any_of(pages_.begin(), pages_.end(), [](std::uint8_t page) { return (page & kChanged) != 0; });
}

std::uint64_t PagedLines::resident_bytes() const {
  if (file_ == nullptr) return size_;
  return kPageSize * static_cast<std::uint64_t>(std::count_if(
                         pages_.begin(), pages_.end(), [](std::uint8_t page) { return (page & kLoaded) != 0; }));
}

ResemblanceRing::ResemblanceRing(std::uint64_t capacity, std::uint64_t added)
    : capacity_(capacity), added_(added), lines_(capacity / kBucketsPerRowDivisor + capacity) {}

// Their buckets are on the way to the cache when this returns: one after the other they would be waited for.
ResemblanceRing::Keys ResemblanceRing::keys_of(const u32* features) const {
  Keys keys;
  for (u32 number = 0; number < kIndexedFeatures; ++number) {
    const auto hash = mixed(std::uint64_t{number} << 32 | features[number]);
    keys[number] = {hash & (capacity_ / kBucketsPerRowDivisor - 1), static_cast<u32>(1 + (hash >> 32) % 255)};
    lines_.prefetch(keys[number].bucket);
  }
  return keys;
}

void ResemblanceRing::add(const u32* features, const std::uint8_t* prefix) {
  const auto row = added_ & (capacity_ - 1);
  if (added_ >= capacity_) forget(row);
  auto& place = lines_.change<ResemblanceRow>(row_line(row));
  std::memcpy(place.prefix, prefix, kPrefixSize);
  std::copy_n(features, feature_count, place.features);
  ++added_;
  index(features, row);
}

// Else its slots would stand for the row that takes its place, and count as the newest of all.
void ResemblanceRing::forget(std::uint64_t row) {
  const auto& old = lines_.look<ResemblanceRow>(row_line(row));
  for (const auto& key : keys_of(old.features)) {
    const u32 gone = key.tag << 24 | static_cast<u32>(row);
    const auto& bucket = lines_.look<ResemblanceBucket>(key.bucket);
    const auto* slot = std::find(std::begin(bucket.slots), std::end(bucket.slots), gone);
    if (slot != std::end(bucket.slots)) lines_.change<ResemblanceBucket>(key.bucket).slots[slot - bucket.slots] = 0;
  }
}

void ResemblanceRing::index(const u32* features, std::uint64_t row) {
  for (const auto& key : keys_of(features))
    slot_to_replace(lines_.change<ResemblanceBucket>(key.bucket), key.tag) = key.tag << 24 | static_cast<u32>(row);
}

// The oldest slot of this tag when it has all that it may have; else an empty one, or the oldest of all.
u32& ResemblanceRing::slot_to_replace(ResemblanceBucket& bucket, u32 tag) const {
  u32 *oldest = nullptr, *oldest_of_tag = nullptr, *empty = nullptr;
  int of_tag = 0;
  for (u32& slot : bucket.slots) {
    if (slot == 0) {
      empty = &slot;
      continue;
    }
    if (oldest == nullptr || age_of(slot) > age_of(*oldest)) oldest = &slot;
    if (slot >> 24 != tag) continue;
    ++of_tag;
    if (oldest_of_tag == nullptr || age_of(slot) > age_of(*oldest_of_tag)) oldest_of_tag = &slot;
  }
  if (of_tag >= kRowsPerFeature) return *oldest_of_tag;
  return empty != nullptr ? *empty : *oldest;
}

// In three passes, each of which sends for the memory that the next one reads: buckets, rows, and then the features.
u32 ResemblanceRing::find(const u32* features, u32 equal_min, std::uint8_t* prefix) {
  u32 slots[kIndexedFeatures * std::size(ResemblanceBucket{}.slots)];
  u32* last = slots;
  for (const auto& key : keys_of(features)) last = gather(key, last);
  Best best;
  for (const u32* slot = slots; slot != last; ++slot) consider(*slot, features, best);
  if (best.equal < equal_min || best.equal == 0) return 0;
  std::memcpy(prefix, lines_.look<ResemblanceRow>(row_line(best.row)).prefix, kPrefixSize);
  return best.equal;
}

u32* ResemblanceRing::gather(const Key& key, u32* last) {
  for (const u32 slot : lines_.look<ResemblanceBucket>(key.bucket).slots) {
    if (slot >> 24 != key.tag) continue;
    lines_.prefetch(row_line(row_of(slot)));
    *last++ = slot;
  }
  return last;
}

void ResemblanceRing::consider(u32 slot, const u32* features, Best& best) {
  if (best.equal != 0 && row_of(slot) == best.row) return;
  const Best next{count_equal(features, lines_.look<ResemblanceRow>(row_line(row_of(slot))).features), age_of(slot),
                  row_of(slot)};
  if (next.equal > best.equal || (next.equal == best.equal && next.age < best.age)) best = next;
}

void ResemblanceRing::add_all(ResemblanceRing& other) {
  const auto count = std::min(other.chunk_count(), capacity_);
  for (auto at = other.added_ - count; at != other.added_; ++at) {
    const auto& row = other.lines_.look<ResemblanceRow>(other.row_line(at & (other.capacity_ - 1)));
    if (has_samples(row.features)) add(row.features, row.prefix);
  }
}

ResemblanceTable::ResemblanceTable(std::string path, std::uint64_t chunk_count_max, const TableTag& tag,
                                   bool is_writable)
    : path_(std::move(path)), tag_(tag), is_writable_(is_writable) {
  if (chunk_count_max < kResemblanceChunksMin || chunk_count_max > kResemblanceChunksMax)
    throw std::invalid_argument("chunk_count_max is not between 128 and 16777216");
  chunk_count_max_ = std::bit_floor(chunk_count_max);
  if (!path_.empty()) open_file();
  if (!ring_) ring_ = std::make_unique<ResemblanceRing>(std::min(kFirstCapacity, chunk_count_max_));
  if (ring_->capacity() > chunk_count_max_) rebuild(chunk_count_max_);
}

void ResemblanceTable::open_file() {
  try {
    Header header;
    auto file = std::make_unique<TableFile>(path_, TableFile::Mode::read);
    if (is_writable_) file = std::make_unique<TableFile>(path_, TableFile::Mode::create);
    if (!read_header(*file, tag_, header)) return;
    auto ring = std::make_unique<ResemblanceRing>(header.capacity, header.added);
    ring->lines().load_from(*file, kLinesOffset);
    file_ = std::move(file);
    ring_ = std::move(ring);
  } catch (const TableError& error) {
    if (error.code != ENOENT && error.code != 0) throw;
  }
}

ResemblanceRing& ResemblanceTable::rebuild(std::uint64_t capacity) {
  auto next = std::make_unique<ResemblanceRing>(capacity);
  next->add_all(*ring_);
  ring_ = std::move(next);
  file_.reset();  // of another size: flush writes a new one
  return *ring_;
}

ResemblanceRing& ResemblanceTable::open_ring() const {
  if (!ring_) throw std::invalid_argument("the resemblance table is closed");
  return *ring_;
}

void ResemblanceTable::add(const u32* features, const std::uint8_t* prefixes, std::size_t count) {
  const std::lock_guard lock(mutex_);
  auto* ring = &open_ring();
  for (std::size_t i = 0; i < count; ++i, features += feature_count, prefixes += kPrefixSize) {
    if (!has_samples(features)) continue;
    if (ring->added() >= ring->capacity() && ring->capacity() < chunk_count_max_) ring = &rebuild(ring->capacity() * 2);
    ring->add(features, prefixes);
  }
}

void ResemblanceTable::find(const u32* features, std::size_t count, u32 equal_min, std::uint8_t* prefixes,
                            std::uint8_t* equal_counts) {
  const std::lock_guard lock(mutex_);
  auto& ring = open_ring();
  std::fill_n(prefixes, count * kPrefixSize, std::uint8_t{0});
  std::fill_n(equal_counts, count, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i, features += feature_count) {
    if (!has_samples(features)) continue;
    equal_counts[i] = static_cast<std::uint8_t>(ring.find(features, equal_min, prefixes + i * kPrefixSize));
  }
}

void ResemblanceTable::flush() {
  const std::lock_guard lock(mutex_);
  auto& lines = open_ring().lines();
  if (!is_writable_ || path_.empty() || !lines.is_changed()) return;
  if (file_) {
    write_to(*file_);
  } else {
    write_anew();
  }
  lines.mark_saved();
}

void ResemblanceTable::write_to(const TableFile& file) {
  open_ring().lines().save(file, kLinesOffset);
  const auto header = make_header(open_ring(), tag_);
  file.write(0, &header, sizeof header);
}

// Under another name first: readers of the file that was there keep it whole.
void ResemblanceTable::write_anew() {
  const auto name = path_ + ".new";
  auto file = std::make_unique<TableFile>(name, TableFile::Mode::create);
  file->empty();
  const std::vector<std::uint8_t> last_page(PagedLines::kPageSize);
  file->write(file_size_of(open_ring().capacity()) - last_page.size(), last_page.data(), last_page.size());
  write_to(*file);
  if (std::rename(name.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(name.c_str());
    throw TableError(code, path_, std::strerror(code));
  }
  file_ = std::move(file);
}

void ResemblanceTable::close() {
  const std::lock_guard lock(mutex_);
  ring_.reset();
  file_.reset();
}

std::uint64_t ResemblanceTable::chunk_count() const {
  const std::lock_guard lock(mutex_);
  return open_ring().chunk_count();
}

std::uint64_t ResemblanceTable::capacity() const {
  const std::lock_guard lock(mutex_);
  return open_ring().capacity();
}

std::uint64_t ResemblanceTable::resident_bytes() const {
  const std::lock_guard lock(mutex_);
  return open_ring().lines().resident_bytes();
}

}  // namespace ohdiff
