//! A store that need not be usable at the start: opening it is retried until it succeeds.
//!
//! Until then every call returns the reason, and traffic continues without it. A damaged file is renamed,
//! never deleted. Once open, it stays open, with keyed hashes.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::folder;
use super::keyed::KeyedStore;
use super::precondition::Precondition;
use super::random::random;
use super::sqlite::{self, SqliteStore, StoreLoad};
use super::{Record, Scope, Store, StoreError, StoreFuture, WriteOutcome, wrapper};
use crate::context::Millis;

/// The endings of the file and of SQLite's additional files.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// A store, or the reason why there is none yet. Clones share it.
#[derive(Clone)]
pub(crate) struct DeferredStore {
    path: PathBuf,
    /// The store for traffic, and with other readers for the admin API.
    opened: Arc<OnceLock<[KeyedStore<SqliteStore>; 2]>>,
    trouble: Arc<Mutex<StoreError>>,
    /// The errors of the last write and the last read of traffic, if they failed.
    failures: Arc<Mutex<[Option<StoreError>; 2]>>,
    /// Device and inode of the file that was opened.
    file: Arc<OnceLock<(u64, u64)>>,
    /// The key for tenants while there is no store.
    key: Arc<OnceLock<[u8; 32]>>,
    /// Keeps other processes out of the data folder.
    lock: Arc<OnceLock<File>>,
    is_for_admin: bool,
}

impl DeferredStore {
    /// The store at `path`, not opened yet.
    pub(crate) fn new(path: &Path) -> Self {
        let trouble = StoreError::Unusable(format!("the store {} is not open yet", path.display()));
        Self {
            path: path.into(),
            opened: Arc::default(),
            trouble: Arc::new(Mutex::new(trouble)),
            failures: Arc::default(),
            file: Arc::default(),
            key: Arc::default(),
            lock: Arc::default(),
            is_for_admin: false,
        }
    }

    /// The same, with other readers ([`SqliteStore::for_admin`]).
    pub(crate) fn for_admin(&self) -> Self {
        Self { is_for_admin: true, ..self.clone() }
    }

    /// Tries to open it.
    ///
    /// # Errors
    /// The reason why it is not possible now; every call returns it until it is.
    pub(crate) fn open(&self) -> Result<(), StoreError> {
        if self.opened.get().is_some() {
            return Ok(());
        }
        let opened = self.lock_folder().and_then(|()| KeyedStore::open(&self.path));
        let opened = opened.inspect_err(|trouble| {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble.clone();
        })?;
        if let Some(file) = identity(&self.path) {
            let _ = self.file.set(file);
        }
        let for_admin = opened.for_admin();
        // If another task was faster, there are two stores on the file, and this one is dropped.
        let _ = self.opened.set([opened, for_admin]);
        Ok(())
    }

    fn lock_folder(&self) -> Result<(), StoreError> {
        if self.lock.get().is_none() {
            sqlite::make_folder(&self.path)?;
            let lock = folder::lock(self.path.parent().unwrap_or(&self.path))?;
            let _ = self.lock.set(lock);
        }
        Ok(())
    }

    /// Renames a damaged file and its additional files; returns the new name.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub(crate) fn set_aside(&self, now: Millis) -> std::io::Result<PathBuf> {
        let damaged = with_ending(&self.path, &format!(".damaged-{}", now / 1000));
        for ending in ENDINGS {
            let target = with_ending(&damaged, ending);
            match std::fs::rename(with_ending(&self.path, ending), &target) {
                // Only the file itself must be there.
                Err(error) if ending.is_empty() || error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error);
                }
                // It may contain stored text, so its mode is narrowed.
                _ => drop(folder::narrow(&target, folder::FILE_MODE)),
            }
        }
        Ok(damaged)
    }

    /// Why data is not saved or not read although the store is open: its file is gone, or the last write or
    /// read failed.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        let opened = self.file.get()?;
        if identity(&self.path).as_ref() != Some(opened) {
            return Some(StoreError::Unusable(format!(
                "the store {} was deleted or replaced, and new data goes into the old file. Restart Plimsoll",
                self.path.display()
            )));
        }
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().flatten().next().cloned()
    }

    /// The opened store, or why there is none.
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        match self.opened.get() {
            Some(stores) => Ok(&stores[usize::from(self.is_for_admin)]),
            None => Err(self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    fn watched<'a, T: Send + 'a>(
        &'a self,
        what: StoreAccess,
        query: impl FnOnce(&'a dyn Store) -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let answer = match self.inner() {
            Ok(store) => query(store),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        // Lists that the admin API reads say nothing about traffic.
        if self.is_for_admin {
            return answer;
        }
        Box::pin(async move {
            let answer = answer.await;
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures[what as usize] = answer.as_ref().err().cloned();
            drop(failures);
            answer
        })
    }

    /// Its load; `None` if it is not open.
    pub(crate) fn load(&self) -> Option<StoreLoad> {
        self.opened.get().map(|[store, _]| store.sqlite().load())
    }

    /// Merges everything into one file ([`SqliteStore::close`]).
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        match self.opened.get() {
            Some([store, _]) => store.sqlite().close().await,
            None => Ok(()),
        }
    }
}

/// A kind of access to the store.
#[derive(Clone, Copy)]
enum StoreAccess {
    Write,
    Read,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

impl wrapper::StoreWrapper for DeferredStore {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        self.inner()
    }

    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        self.watched(StoreAccess::Write, |store| store.put(scope, records, only_if))
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        self.watched(StoreAccess::Write, |store| store.append(scope, records, only_if))
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        self.watched(StoreAccess::Read, |store| store.scan(scope, newest))
    }

    fn claim(&self, _: u128, _: u64, _: Duration) -> StoreFuture<'_, bool> {
        // The inner store knows nothing of a failure.
        Box::pin(async move { Store::ready(self).await.map(|()| true) })
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        let store = match self.failure() {
            Some(failure) => Err(StoreError::Unusable(failure.to_string())),
            None => self.inner(),
        };
        match store {
            Ok(store) => store.ready(),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        // A random key for the lifetime of this process keeps tenants apart without a store, too.
        if let Ok(store) = self.inner() {
            return store.tenant_key();
        }
        let key = match self.key.get() {
            Some(key) => Ok(*key),
            None => random().map(|key| *self.key.get_or_init(|| key)),
        };
        Box::pin(std::future::ready(key))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::store::conformance::{self, scope, turn};
    use crate::store::keyed::FILE;
    use crate::store::{RecordKind, ScopePage};

    #[tokio::test]
    async fn closed_store_says_why() {
        let folder = conformance::folder();
        let in_the_way = folder.path().join("data");
        std::fs::write(&in_the_way, "a file where a folder should be").unwrap();
        let late = DeferredStore::new(&in_the_way.join("p.db"));
        assert!(late.open().is_err());
        let put = || late.put_if_absent(scope("t", "s"), vec![turn(1, "a", 1)]);
        let trouble = put().await.unwrap_err().to_string();
        assert!(trouble.contains("cannot be created"), "{trouble}");
        assert_eq!(late.tenant_key().await.unwrap(), late.tenant_key().await.unwrap());
        assert_eq!(late.load(), None);
        std::fs::remove_file(&in_the_way).unwrap();
        late.open().unwrap();
        assert_eq!(put().await.unwrap(), [WriteOutcome::Written]);
        let line = late.for_admin().scopes(ScopePage::first(9)).await.unwrap();
        assert_eq!(line.len(), 1);
    }

    /// Without the secret no record can be found, so the store waits for it as it does for the file.
    #[tokio::test]
    async fn store_waits_for_its_secret() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let cut = || Record { kind: RecordKind::Cut, ..turn(7, "{}", 1) };
        let store = KeyedStore::open(&path).unwrap();
        store.put_if_absent(scope("t", "s"), vec![cut()]).await.unwrap();
        store.sqlite().close().await.unwrap();
        let secret = std::fs::read(folder.path().join(FILE)).unwrap();
        std::fs::write(folder.path().join(FILE), "no secret").unwrap();
        let late = DeferredStore::new(&path);
        assert!(matches!(late.open(), Err(StoreError::Unusable(_))));
        let get = || late.get(scope("t", "s"), RecordKind::Cut, 7);
        let trouble = get().await.unwrap_err().to_string();
        assert!(trouble.contains("64 hex digits"), "{trouble}");
        std::fs::write(folder.path().join(FILE), secret).unwrap();
        late.open().unwrap();
        for store in [late.clone(), late.for_admin()] {
            let found = store.get(scope("t", "s"), RecordKind::Cut, 7).await.unwrap();
            assert_eq!(found, Some("{}".into()));
            let put = store.put_if_absent(scope("t", "s"), vec![cut()]).await.unwrap();
            assert_eq!(put, [WriteOutcome::Existed("{}".into())]);
        }
    }

    #[tokio::test]
    async fn damaged_file_is_kept_aside() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let letter = "this is a letter, not a database".repeat(100);
        std::fs::write(&path, &letter).unwrap();
        std::fs::write(folder.path().join("p.db-wal"), "and more").unwrap();
        let late = DeferredStore::new(&path);
        assert!(matches!(late.open(), Err(StoreError::Damaged(_))));
        let aside = late.set_aside(5_000).unwrap();
        assert_eq!(aside, folder.path().join("p.db.damaged-5"));
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), letter);
        let log = std::fs::read_to_string(folder.path().join("p.db.damaged-5-wal")).unwrap();
        assert_eq!(log, "and more");
        let mode = std::fs::metadata(&aside).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        late.open().unwrap();
        assert!(path.exists());
    }

    /// A store that fails says so until its next write or read of that kind succeeds. Lists that the admin API reads
    /// say nothing about traffic.
    #[tokio::test]
    async fn failure_lasts_until_success() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let store = DeferredStore::new(&path);
        assert_eq!(store.failure().map(|it| it.to_string()), None, "it is not open yet");
        store.open().unwrap();
        let put = |key| store.put_if_absent(scope("t", "s"), vec![turn(key, "a", 1)]);
        put(1).await.unwrap();
        assert!(store.failure().is_none());
        assert!(store.load().is_some());
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("ALTER TABLE facts RENAME TO hidden").unwrap();
        store.for_admin().scan(scope("t", "s"), 9).await.unwrap_err();
        assert!(store.failure().is_none(), "what a list reads is not traffic");
        store.scan(scope("t", "s"), 9).await.unwrap_err();
        assert!(store.failure().is_some(), "a read failed");
        connection.execute_batch("ALTER TABLE hidden RENAME TO facts").unwrap();
        put(2).await.unwrap();
        assert!(store.failure().is_some(), "a write says nothing about reads");
        store.scan(scope("t", "s"), 9).await.unwrap();
        assert!(store.failure().is_none());
    }

    #[tokio::test]
    async fn replaced_file_is_reported() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let store = DeferredStore::new(&path);
        store.open().unwrap();
        assert!(store.failure().is_none());
        let moved = folder.path().join("moved.db");
        std::fs::rename(&path, &moved).unwrap();
        let failure = store.failure().unwrap().to_string();
        assert!(failure.contains("was deleted or replaced"), "{failure}");
        std::fs::write(&path, "another file").unwrap();
        assert!(store.failure().is_some(), "another file in its place");
        std::fs::rename(&moved, &path).unwrap();
        assert!(store.failure().is_none());
    }

    #[tokio::test]
    async fn closing_merges_log() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        let store = DeferredStore::new(&path);
        store.close().await.unwrap();
        store.open().unwrap();
        store.put_if_absent(scope("t", "s"), vec![turn(1, "a", 1)]).await.unwrap();
        let log = with_ending(&path, "-wal");
        assert!(std::fs::metadata(&log).is_ok_and(|it| it.len() > 0));
        store.close().await.unwrap();
        assert!(std::fs::metadata(&log).map_or(0, |it| it.len()) == 0, "the log is merged");
    }

    #[test]
    fn setting_aside_can_fail() {
        let folder = conformance::folder();
        let store = DeferredStore::new(&folder.path().join("p.db"));
        let error = store.set_aside(5_000).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "there is no file");
        std::fs::write(folder.path().join("p.db"), "a").unwrap();
        let in_the_way = folder.path().join("p.db.damaged-5-wal");
        std::fs::create_dir(&in_the_way).unwrap();
        std::fs::write(folder.path().join("p.db-wal"), "b").unwrap();
        assert!(store.set_aside(5_000).is_err(), "a folder has the name of the log");
    }
}
