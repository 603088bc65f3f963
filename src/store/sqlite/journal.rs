//! The journal: what ended exchanges taught, until it is in the database.
//!
//! Each exchange that ends appends one entry to a file, which survives `kill -9`; what ends during a write goes into the
//! next one. The store's thread moves all entries into the database in one transaction, and deletes their files.
//! The transaction also stores the number of the last file, so that a crash in between applies none twice: a deleted
//! session would come back. The end of a file that is no whole entry was never acknowledged, and is ignored.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64;

use super::connection::beside;
use super::errors::unusable;
use super::queue::{QUEUE, QUEUE_BYTES};
use crate::store::tombstones::Tombstones;
use crate::store::{Record, RecordKind, Scope, StoreError, folder};

/// The files are named like the database, with this and a number.
const ENDING: &str = "-turns.";
/// The number of the last file whose entries are in the database, in the table of secrets.
const APPLIED: &str = "applied_turns";

/// A write that takes this long shows a slow disk: until [`REST`] after it, the store's thread stores what would be
/// entries. So a disk that hangs holds one blocking thread at most.
const SLOW: Duration = Duration::from_millis(200);
const REST: Duration = Duration::from_secs(10);

/// Records of one scope, which are written together.
pub(super) struct JournalEntry {
    pub(super) scope: Scope,
    pub(super) records: Vec<Record>,
}

/// What became of an entry.
pub(super) enum AppendOutcome {
    /// It is in the file.
    Appended,
    /// Its session was deleted.
    Deleted,
    /// The disk did not take it.
    Refused(JournalEntry),
}

/// An entry of the next write.
pub(super) struct JoinedWrite {
    /// Nobody writes yet: whoever joined calls [`Journal::write_joining`].
    pub(super) is_first: bool,
    pub(super) outcome: oneshot::Receiver<AppendOutcome>,
}

/// An entry for the next write, and whoever waits for it.
struct JoiningEntry {
    entry: JournalEntry,
    /// The time of its data.
    since: Option<Instant>,
    answer: oneshot::Sender<AppendOutcome>,
}

/// The entries that are not in the database yet, and their files.
pub(super) struct Journal {
    database: PathBuf,
    /// Locked while entries are written, which can take long if the disk hangs: only the store's thread waits for that.
    files: Mutex<JournalFiles>,
    tail: Mutex<Tail>,
}

struct JournalFiles {
    /// The numbers of the files that exist.
    numbers: Vec<u64>,
    /// The highest number that was ever used.
    last: u64,
    /// The file of that number, if the next entry goes into it.
    open: Option<File>,
    /// The bytes of its entries.
    bytes: u64,
}

#[derive(Default)]
struct Tail {
    entries: Vec<Arc<JournalEntry>>,
    /// How many of them the store's thread is moving.
    taken: usize,
    bytes: usize,
    /// When somebody began to write, if that has not ended.
    writing_since: Option<Instant>,
    /// What that writer writes next.
    joining: Vec<JoiningEntry>,
    /// Nothing is written before this time, because the last write took long.
    rests_until: Option<Instant>,
    /// The database did not take what was written last.
    is_stuck: bool,
    tombstones: Tombstones,
}

/// The entries that the writer moves into the database.
pub(super) struct JournalBatch {
    pub(super) entries: Vec<Arc<JournalEntry>>,
    /// The number of the last file that has some of them.
    last: u64,
}

impl JournalEntry {
    pub(super) fn bytes(&self) -> usize {
        let records = self.records.iter().map(|record| record.value.len() + size_of::<Record>());
        records.sum()
    }

    /// Whether it has the fingerprint with this key.
    pub(super) fn shows(&self, key: u128) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.kind == RecordKind::Fingerprint && record.key == key)
    }

    /// Appends it as it is in a file.
    fn encode(&self, file: &mut Vec<u8>) {
        file.reserve(HEAD + 256 + self.bytes());
        let begin = file.len();
        file.extend_from_slice(&[0; HEAD]);
        put_bytes(file, self.scope.tenant.as_str().as_bytes());
        put_bytes(file, self.scope.session.as_str().as_bytes());
        for Record { kind, key, value, at, .. } in &self.records {
            file.push(kind.layout().code as u8);
            file.extend_from_slice(&key.to_le_bytes());
            file.extend_from_slice(&at.to_le_bytes());
            put_bytes(file, value);
        }
        let (head, body) = file[begin..].split_at_mut(HEAD);
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&xxh3_64(body).to_le_bytes());
    }

    fn decode(mut body: &[u8]) -> Option<Self> {
        let tenant = std::str::from_utf8(take_bytes(&mut body)?).ok()?.into();
        let session = std::str::from_utf8(take_bytes(&mut body)?).ok()?.into();
        let mut records = Vec::new();
        while !body.is_empty() {
            records.push(Record {
                kind: RecordKind::coded(i64::from(u8::from_le_bytes(take(&mut body)?)))?,
                key: u128::from_le_bytes(take(&mut body)?),
                at: u64::from_le_bytes(take(&mut body)?),
                value: Bytes::copy_from_slice(take_bytes(&mut body)?),
                turn: None,
            });
        }
        Some(Self { scope: Scope { tenant, session }, records })
    }
}

/// The length and the checksum before each entry, bytes.
const HEAD: usize = 12;

fn put_bytes(entry: &mut Vec<u8>, bytes: &[u8]) {
    entry.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    entry.extend_from_slice(bytes);
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*bytes)
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take(from)?) as usize;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

/// The entries of a file, up to the first that is not whole.
fn entries(mut file: &[u8]) -> Vec<Arc<JournalEntry>> {
    let mut entries = Vec::new();
    while let Some(entry) = next_entry(&mut file) {
        entries.push(Arc::new(entry));
    }
    entries
}

fn next_entry(file: &mut &[u8]) -> Option<JournalEntry> {
    let length = u32::from_le_bytes(take(file)?) as usize;
    let checksum = u64::from_le_bytes(take(file)?);
    let (body, rest) = file.split_at_checked(length)?;
    *file = rest;
    if xxh3_64(body) == checksum { JournalEntry::decode(body) } else { None }
}

impl Tail {
    /// Whether the next write takes an entry. While the database takes nothing, its thread's answers say so, and why.
    fn takes(&self, entry: &JournalEntry) -> bool {
        let now = Instant::now();
        let is_slow = self.writing_since.is_some_and(|since| now.duration_since(since) >= SLOW)
            || self.rests_until.is_some_and(|until| now < until);
        let joining = self.joining.iter().map(|joining| joining.entry.bytes()).sum::<usize>();
        !self.is_stuck
            && !is_slow
            && self.entries.len() + self.joining.len() < QUEUE
            && self.bytes + joining + entry.bytes() <= QUEUE_BYTES
    }

    /// How many entries wait for the store's thread.
    fn waiting(&self) -> usize {
        self.entries.len() - self.taken
    }
}

impl Journal {
    /// The journal beside `database`, with what an earlier process left. `applied`: the number of the last file whose
    /// entries are in the database.
    ///
    /// # Errors
    /// If a file that is left cannot be read.
    pub(super) fn open(database: &Path, applied: u64) -> Result<Self, StoreError> {
        Self::left_beside(database, applied).map_err(|error| {
            unusable(database, &format!("the turns beside it cannot be read: {error}"))
        })
    }

    fn left_beside(database: &Path, applied: u64) -> io::Result<Self> {
        let mut numbers = numbers_beside(database)?;
        numbers.sort_unstable();
        let mut tail = Tail::default();
        for number in numbers.iter().filter(|number| **number > applied) {
            tail.entries.extend(entries(&std::fs::read(file_path(database, *number))?));
        }
        tail.bytes = tail.entries.iter().map(|entry| entry.bytes()).sum();
        let last_number = numbers.last().map_or(applied, |last| applied.max(*last));
        let files = JournalFiles { numbers, last: last_number, open: None, bytes: 0 };
        Ok(Self { database: database.into(), files: Mutex::new(files), tail: Mutex::new(tail) })
    }

    /// Adds an entry to the next write. `since`: the time of its data.
    ///
    /// # Errors
    /// The entry, if disk or database take nothing or are slow, or too much waits.
    pub(super) fn join(
        &self,
        entry: JournalEntry,
        since: Option<Instant>,
    ) -> Result<JoinedWrite, JournalEntry> {
        let mut tail = lock(&self.tail);
        if !tail.takes(&entry) {
            return Err(entry);
        }
        let (answer, outcome) = oneshot::channel();
        tail.joining.push(JoiningEntry { entry, since, answer });
        let is_first = tail.writing_since.is_none();
        tail.writing_since.get_or_insert_with(Instant::now);
        Ok(JoinedWrite { is_first, outcome })
    }

    /// Writes all that has joined, and what joins meanwhile. `written` is told how many entries waited for the store's
    /// thread before a write, and how many after it.
    pub(super) fn write_joining(&self, written: impl Fn(Range<usize>)) {
        while let Some(joined) = self.take_joining() {
            written(self.write(joined));
        }
    }

    fn take_joining(&self) -> Option<Vec<JoiningEntry>> {
        let mut tail = lock(&self.tail);
        let joined = std::mem::take(&mut tail.joining);
        tail.writing_since = if joined.is_empty() { None } else { Some(Instant::now()) };
        if joined.is_empty() { None } else { Some(joined) }
    }

    fn write(&self, joined: Vec<JoiningEntry>) -> Range<usize> {
        // Locked before deleted sessions are looked up: none is deleted between that and the write (`Journal::take`).
        let mut files = lock(&self.files);
        let mut encoded = Vec::new();
        let mut writing = Vec::with_capacity(joined.len());
        {
            let tail = lock(&self.tail);
            for JoiningEntry { entry, since, answer } in joined {
                if since.is_some_and(|since| tail.tombstones.is_deleted(&entry.scope, since)) {
                    let _ = answer.send(AppendOutcome::Deleted);
                    continue;
                }
                entry.encode(&mut encoded);
                writing.push((entry, answer));
            }
        }
        let began = Instant::now();
        let is_written = files.write(&self.database, &encoded).is_ok();
        let mut tail = lock(&self.tail);
        if began.elapsed() >= SLOW {
            tail.rests_until = Some(Instant::now() + REST);
        }
        let waiting = tail.waiting();
        for (entry, answer) in writing {
            // If nobody waits for it any more, it is in the file all the same.
            let _ = answer.send(match is_written {
                true => {
                    tail.bytes += entry.bytes();
                    tail.entries.push(Arc::new(entry));
                    AppendOutcome::Appended
                }
                false => AppendOutcome::Refused(entry),
            });
        }
        waiting..tail.waiting()
    }

    /// Whether an entry that is not in the database concerns a query.
    pub(super) fn holds(&self, concerns: impl Fn(&JournalEntry) -> bool) -> bool {
        lock(&self.tail).entries.iter().any(|entry| concerns(entry))
    }

    /// The bytes of the entries that are not in the database.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.tail).bytes
    }

    /// All entries for the database; they stay here until [`Journal::release`]. From now on, data of the `deleted`
    /// scopes that was known before is refused.
    pub(super) fn take<'a>(&self, deleted: impl Iterator<Item = &'a Scope>) -> JournalBatch {
        let mut files = lock(&self.files);
        // Later entries go into another file, so that this one can be deleted.
        files.open = None;
        let mut tail = lock(&self.tail);
        for scope in deleted {
            tail.tombstones.add(scope.clone());
        }
        tail.taken = tail.entries.len();
        JournalBatch { entries: tail.entries.clone(), last: files.last }
    }

    /// Has the next entry written to `file`.
    #[cfg(test)]
    pub(super) fn write_to(&self, file: File) {
        lock(&self.files).open = Some(file);
    }

    /// Whether the database took what was written last.
    pub(super) fn set_stuck(&self, is_stuck: bool) {
        lock(&self.tail).is_stuck = is_stuck;
    }

    /// Whether a scope was deleted since a time.
    pub(super) fn is_deleted(&self, scope: &Scope, since: Instant) -> bool {
        lock(&self.tail).tombstones.is_deleted(scope, since)
    }

    /// Forgets entries that are in the database now, and deletes their files.
    pub(super) fn release(&self, batch: &JournalBatch) {
        let count = batch.entries.len();
        {
            let mut tail = lock(&self.tail);
            tail.entries.drain(..count);
            tail.taken = 0;
            tail.bytes -= batch.entries.iter().map(|entry| entry.bytes()).sum::<usize>();
        }
        let mut moved = lock(&self.files).numbers.clone();
        moved.retain(|number| *number <= batch.last);
        for number in &moved {
            // One that stays is known to be applied, and is deleted at the next start.
            drop(std::fs::remove_file(file_path(&self.database, *number)));
        }
        lock(&self.files).numbers.retain(|number| !moved.contains(number));
    }
}

impl JournalFiles {
    fn write(&mut self, database: &Path, entry: &[u8]) -> io::Result<()> {
        let file = match &mut self.open {
            Some(file) => file,
            none => {
                self.last += 1;
                let file = folder::append(&file_path(database, self.last))?;
                self.numbers.push(self.last);
                self.bytes = 0;
                none.insert(file)
            }
        };
        let written = file.write_all(entry);
        match written {
            Ok(()) => self.bytes += entry.len() as u64,
            // After a part of an entry, no other could be read.
            Err(_) if file.set_len(self.bytes).is_err() => self.open = None,
            Err(_) => {}
        }
        written
    }
}

impl JournalBatch {
    /// Stores, in a transaction, that its entries are in the database.
    pub(super) fn set_applied(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut replace =
            connection.prepare_cached("INSERT OR REPLACE INTO secrets VALUES (?1, ?2)")?;
        replace.execute(params![APPLIED, self.last.to_be_bytes()]).map(drop)
    }
}

/// The number of the last file whose entries are in the database; 0 if there was none.
pub(super) fn applied(connection: &Connection) -> rusqlite::Result<u64> {
    let query = "SELECT value FROM secrets WHERE name = ?1";
    let stored = connection.query_row(query, [APPLIED], |row| row.get(0)).optional()?;
    Ok(stored.map_or(0, u64::from_be_bytes))
}

/// Returns once the files that are beside `database` now are gone, because the process that uses it has moved them, or
/// after `limit`.
pub(super) fn wait_until_moved(database: &Path, limit: Duration) {
    let until = Instant::now() + limit;
    for number in numbers_beside(database).unwrap_or_default() {
        while file_path(database, number).exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn numbers_beside(database: &Path) -> io::Result<Vec<u64>> {
    let prefix = file_prefix(database);
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut numbers = Vec::new();
    for found in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
        let name = found?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&*prefix));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    Ok(numbers)
}

fn file_prefix(database: &Path) -> String {
    let name = database.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}{ENDING}")
}

fn file_path(database: &Path, number: u64) -> PathBuf {
    beside(database, &format!("{ENDING}{number}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::store::conformance::{self, scope, turn};

    fn entry(key: u128, value: &str) -> JournalEntry {
        let fingerprint = Record { kind: RecordKind::Fingerprint, ..turn(key, "", 7) };
        JournalEntry { scope: scope("t", "ü"), records: vec![turn(key, value, 5), fingerprint] }
    }

    fn records(entries: &[Arc<JournalEntry>]) -> Vec<Record> {
        entries.iter().flat_map(|entry| entry.records.clone()).collect()
    }

    fn append(journal: &Journal, entry: JournalEntry) -> AppendOutcome {
        match journal.join(entry, None) {
            Err(refused) => AppendOutcome::Refused(refused),
            Ok(mut joined) => {
                journal.write_joining(|_| {});
                joined.outcome.try_recv().unwrap()
            }
        }
    }

    fn appended(journal: &Journal, entry: JournalEntry) -> bool {
        matches!(append(journal, entry), AppendOutcome::Appended)
    }

    fn encoded(entry: &JournalEntry) -> Vec<u8> {
        let mut file = Vec::new();
        entry.encode(&mut file);
        file
    }

    #[test]
    fn file_ends_with_its_last_whole_entry() {
        let written = [entry(1, "one"), entry(2, ""), entry(3, "three")];
        let files = written.each_ref().map(encoded);
        let file = files.concat();
        for end in 0..=file.len() {
            let whole = (0..=3).rev().find(|count| files[..*count].concat().len() <= end).unwrap();
            let read = entries(&file[..end]);
            assert_eq!(read.len(), whole, "cut at {end}");
            assert!(read.iter().all(|entry| entry.scope == scope("t", "ü")));
            let expected: Vec<_> =
                written[..whole].iter().flat_map(|entry| entry.records.clone()).collect();
            assert_eq!(records(&read), expected);
        }
        for at in 0..files[0].len() {
            let mut file = file.clone();
            file[at] ^= 1;
            assert_eq!(entries(&file).len(), 0, "changed at {at}");
        }
    }

    #[test]
    fn file_is_read_until_it_is_applied() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let journal = Journal::open(&path, 0).unwrap();
        assert!(appended(&journal, entry(1, "one")));
        let batch = journal.take(std::iter::empty());
        assert!(appended(&journal, entry(2, "two")));
        let left = |applied| Journal::open(&path, applied).unwrap().take(std::iter::empty());
        let both = [entry(1, "one").records, entry(2, "two").records].concat();
        assert_eq!(records(&left(0).entries), both);
        assert_eq!(records(&left(batch.last).entries), entry(2, "two").records);
        journal.release(&batch);
        assert_eq!(numbers_beside(&path).unwrap(), [2]);
        assert_eq!(journal.bytes(), entry(2, "two").bytes());
        let again = Journal::open(&path, batch.last).unwrap();
        assert!(appended(&again, entry(3, "three")));
        let all = again.take(std::iter::empty());
        assert_eq!(all.last, 3, "no number is used twice");
        again.release(&all);
        assert_eq!(numbers_beside(&path).unwrap(), Vec::<u64>::new());
        assert_eq!(Journal::open(&path, 3).unwrap().take(std::iter::empty()).last, 3);
    }

    /// An entry that is not written leaves no part of it before the next.
    #[test]
    fn failed_write_is_refused() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let journal = Journal::open(&path, 0).unwrap();
        assert!(appended(&journal, entry(1, "one")));
        journal.write_to(File::open(file_path(&path, 1)).unwrap());
        let refused = append(&journal, entry(2, "two"));
        assert!(matches!(refused, AppendOutcome::Refused(entry) if entry.records[0].key == 2));
        assert!(appended(&journal, entry(3, "three")));
        let left = Journal::open(&path, 0).unwrap().take(std::iter::empty());
        let both = [entry(1, "one").records, entry(3, "three").records].concat();
        assert_eq!(records(&left.entries), both);
        assert_eq!(left.last, 2);
    }

    /// What ends during a write goes into the next one, and a deleted session's into none.
    #[test]
    fn what_joins_a_write_is_written_after_it() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let journal = Journal::open(&path, 0).unwrap();
        let since = Some(Instant::now());
        let other = JournalEntry { scope: scope("t", "deleted"), ..entry(2, "two") };
        let joining = [(entry(1, "one"), None), (other, since), (entry(3, "three"), None)]
            .map(|(entry, since)| journal.join(entry, since).ok().unwrap());
        assert_eq!(joining.each_ref().map(|joined| joined.is_first), [true, false, false]);
        assert!(!journal.holds(|_| true));
        drop(journal.take([scope("t", "deleted")].iter()));
        journal.write_joining(|waiting| assert_eq!(waiting, 0..2));
        let [first, deleted, third] = joining.map(|mut joined| joined.outcome.try_recv().unwrap());
        assert!(matches!(first, AppendOutcome::Appended));
        assert!(matches!(deleted, AppendOutcome::Deleted));
        assert!(matches!(third, AppendOutcome::Appended));
        let both = [entry(1, "one").records, entry(3, "three").records].concat();
        assert_eq!(records(&entries(&std::fs::read(file_path(&path, 1)).unwrap())), both);
        assert!(journal.join(entry(4, ""), None).is_ok_and(|joined| joined.is_first));
    }

    /// Whoever ends another exchange does not wait for a disk that hangs.
    #[test]
    fn nothing_joins_a_write_that_hangs() {
        let folder = conformance::folder();
        let journal = Journal::open(&folder.path().join("p.db"), 0).unwrap();
        lock(&journal.tail).writing_since = Instant::now().checked_sub(SLOW);
        assert!(matches!(append(&journal, entry(1, "one")), AppendOutcome::Refused(_)));
        assert!(lock(&journal.tail).joining.is_empty());
    }

    /// A pipe takes 64 KiB, and the rest only once somebody reads.
    #[test]
    fn slow_disk_gets_no_entries_for_a_while() {
        let folder = conformance::folder();
        let journal = Journal::open(&folder.path().join("p.db"), 0).unwrap();
        let (mut disk, file) = std::io::pipe().unwrap();
        journal.write_to(File::from(OwnedFd::from(file)));
        let slow = std::thread::spawn(move || {
            std::thread::sleep(2 * SLOW);
            let mut written = vec![0; 100_000];
            disk.read_exact(&mut written).unwrap();
            disk
        });
        assert!(appended(&journal, entry(1, &"x".repeat(100_000))));
        let _disk = slow.join().unwrap();
        assert!(!appended(&journal, entry(2, "")));
        lock(&journal.tail).rests_until = Some(Instant::now());
        assert!(appended(&journal, entry(3, "")));
    }

    /// On a loaded machine the file is slow, which is another test's subject.
    fn appended_on_busy_disk(journal: &Journal, entry: JournalEntry) -> bool {
        lock(&journal.tail).rests_until = None;
        appended(journal, entry)
    }

    #[test]
    fn journal_is_bounded() {
        let folder = conformance::folder();
        let journal = Journal::open(&folder.path().join("p.db"), 0).unwrap();
        let part = || entry(1, &"x".repeat(QUEUE_BYTES / 2 - 2 * size_of::<Record>()));
        assert!(appended_on_busy_disk(&journal, part()));
        assert!(appended_on_busy_disk(&journal, part()), "at the limit");
        assert!(!appended_on_busy_disk(&journal, entry(1, "")));
        let batch = journal.take(std::iter::empty());
        journal.release(&batch);
        for _ in 0..QUEUE {
            assert!(appended_on_busy_disk(&journal, entry(1, "")));
        }
        assert!(!appended_on_busy_disk(&journal, entry(1, "")));
    }
}
