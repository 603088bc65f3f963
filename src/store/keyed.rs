//! A store in which no hash of content is readable: whoever has the file or a copy of it cannot check a guess
//! about what was said.
//!
//! Keys of parts, chains and replies are plain hashes in memory. On the way to and from the store, they pass
//! through a block cipher with a key of the installation. A value with keyed hashes begins with a blank,
//! which JSON ignores. Must not know traffic.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use bytes::Bytes;

use super::drafts::Draft;
use super::live_events::{ToldEvent, ToldEvents};
use super::notes::StoredNote;
use super::precondition::Precondition;
use super::record::{RecordKey, RecordValue};
use super::redis::{RedisServer, RedisStore};
use super::sqlite::{self, SqliteStore};
use super::{
    LogPlace, Record, RecordKind, Scope, SessionGain, Store, StoreError, StoreFuture, WriteOutcome,
    folder, wrapper,
};
use crate::context::{SessionId, TenantId};
use crate::dialect::PartKey;

/// The file of the installation's secret, in the data folder: 64 hex digits.
pub(super) const FILE: &str = "install.key";
/// The first byte of a value whose hashes are keyed.
const MARK: u8 = b' ';
/// Hex digits of a hash.
const DIGITS: usize = 32;

/// Turns hashes of content into names that only this installation can compute, and back.
#[derive(Clone)]
struct Cipher {
    blocks: Aes128,
    fingerprint: [u8; 32],
    /// The key for the hashes of credentials, if it is made from the secret.
    tenant_key: Option<[u8; 32]>,
}

impl Cipher {
    fn new(secret: &[u8; 32]) -> Self {
        let key = blake3::derive_key("plimsoll hashes of content in the store, version 1", secret);
        let fingerprint = blake3::derive_key("plimsoll install secret, fingerprint", secret);
        // A block of AES-128 is as long as a hash, so a keyed hash takes no more room.
        let mut block_key = [0; 16];
        block_key.copy_from_slice(&key[..16]);
        Self { blocks: Aes128::new(&block_key.into()), fingerprint, tenant_key: None }
    }

    /// The cipher for a configured secret.
    fn of_fleet(secret: &str) -> Self {
        // Whoever has it knows tenants without asking the store.
        let key = blake3::derive_key("plimsoll tenants of a fleet, version 1", secret.as_bytes());
        let secret = blake3::derive_key("plimsoll secret of a fleet, version 1", secret.as_bytes());
        Self { tenant_key: Some(key), ..Self::new(&secret) }
    }

    /// The cipher for the secret in a data folder, which is made if there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Unusable`]: the file cannot be read or made, or has no valid secret.
    fn open(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        // Also a link that leads nowhere yet is somebody's key: it is not replaced.
        let is_missing = std::fs::symlink_metadata(&path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing {
            make(folder, &path).map_err(|error| {
                let path = path.display();
                StoreError::Unusable(format!(
                    "{path} cannot be created: {error}; check the owner and the mode of its folder, and the \
                     room on its disk, or choose another folder with --data"
                ))
            })?;
        }
        let text = std::fs::read_to_string(&path)
            .map_err(|error| unusable_secret(&path, &error.to_string()))?;
        let secret = blake3::Hash::from_hex(text.trim())
            .map_err(|_| unusable_secret(&path, "it does not contain 64 hex digits"))?;
        Ok(Self::new(secret.as_bytes()))
    }

    /// A fingerprint of the secret, which reveals nothing else about it.
    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn encrypt_hash(&self, hash: u128) -> u128 {
        let mut block = hash.to_be_bytes().into();
        self.blocks.encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }

    fn open_hash(&self, keyed: u128) -> u128 {
        let mut block = keyed.to_be_bytes().into();
        self.blocks.decrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }

    fn encrypt_value(&self, value: &[u8]) -> Bytes {
        let mut keyed = Vec::with_capacity(value.len() + 1);
        keyed.push(MARK);
        keyed.extend_from_slice(value);
        change_hashes(&mut keyed, |hash| self.encrypt_hash(hash));
        keyed.into()
    }

    fn open_value(&self, value: Bytes) -> Bytes {
        // A value without the mark, such as a text, is stored as it is.
        let Some(keyed) = value.strip_prefix(&[MARK]) else { return value };
        let mut open = keyed.to_vec();
        change_hashes(&mut open, |hash| self.open_hash(hash));
        open.into()
    }

    fn encrypted(&self, record: Record) -> Record {
        let key = if is_hash(record.kind) { self.encrypt_hash(record.key) } else { record.key };
        let value = match is_fact(record.kind) {
            true => self.encrypt_value(&record.value),
            false => record.value,
        };
        Record { key, value, ..record }
    }

    fn encrypted_note(&self, note: &StoredNote) -> StoredNote {
        StoredNote { key: self.encrypt_hash(note.key), text: self.encrypt_value(&note.text) }
    }

    fn opened(&self, record: Record) -> Record {
        if !is_fact(record.kind) {
            return record;
        }
        let key = if is_hash(record.kind) { self.open_hash(record.key) } else { record.key };
        Record { key, value: self.open_value(record.value), ..record }
    }
}

/// A fingerprint of a fleet's secret, which reveals nothing else about it.
pub(crate) fn fingerprint(secret: &str) -> Box<str> {
    blake3::Hash::from_bytes(*Cipher::of_fleet(secret).fingerprint()).to_hex().as_str().into()
}

fn unusable_secret(path: &Path, reason: &str) -> StoreError {
    let path = path.display();
    StoreError::Unusable(format!(
        "{path} cannot be used: {reason}. It is the key of stored data; restore it from a backup, or move it away to \
         start with a new one"
    ))
}

/// Whether records of a kind contain hashes of content.
fn is_fact(kind: RecordKind) -> bool {
    kind.layout().value == RecordValue::Fact
}

/// Whether the key of a kind of records is a hash of content.
fn is_hash(kind: RecordKind) -> bool {
    kind.layout().key == RecordKey::Content
}

fn change_hashes(value: &mut [u8], change: impl Fn(u128) -> u128) {
    // The result has the same form and place, so the reverse change finds the same strings. A
    // string of that form which is no hash is changed and restored as well.
    let mut from = 0;
    while let Some(quote) = memchr::memchr(b'"', &value[from..]) {
        let start = from + quote + 1;
        let end = start + DIGITS;
        from = start;
        if value.get(end) != Some(&b'"') {
            continue;
        }
        if let Some(hash) = parse_hash(&value[start..end]) {
            // As every key is written: `format!` with hex digits takes several times as long.
            let digits = PartKey(change(hash)).to_string();
            value[start..end].copy_from_slice(digits.as_bytes());
            from = end;
        }
    }
}

fn parse_hash(digits: &[u8]) -> Option<u128> {
    let mut hash = 0;
    for digit in digits {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            // Hashes are written in lower case; other text of that length is left as it is.
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        hash = hash << 4 | u128::from(nibble);
    }
    Some(hash)
}

fn make(folder: &Path, path: &Path) -> std::io::Result<()> {
    folder::make(folder)?;
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(std::io::Error::other)?;
    // Renamed once it is whole, so that a crash leaves no half secret under the real name.
    let temporary = folder.join(format!(".{FILE}.{:016x}", u64::from_be_bytes(name)));
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = writeln!(file, "{}", blake3::Hash::from_bytes(secret).to_hex())
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = written {
        // What was made of it is of no use; the first error counts.
        drop(std::fs::remove_file(&temporary));
        return Err(error);
    }
    std::fs::File::open(folder)?.sync_all()
}

/// A store with keyed hashes.
pub(crate) struct KeyedStore<S> {
    store: S,
    cipher: Cipher,
}

impl KeyedStore<SqliteStore> {
    /// Opens the store at `path` ([`SqliteStore::open`]), with the secret in its folder.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] or [`StoreError::Damaged`], saying what is wrong and what to do.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        sqlite::make_folder(path)?;
        let folder = path.parent().unwrap_or(path);
        let cipher = Cipher::open(folder)?;
        let store = SqliteStore::open(path)?;
        if store.keyed_with(cipher.fingerprint())? {
            let file = folder.join(FILE);
            tracing::warn!(
                "{} is not the key that the store was written with: decisions of earlier sessions are not found. \
                 Put the old one back, and start again",
                file.display()
            );
        }
        Ok(Self { store, cipher })
    }

    /// The same, with other readers ([`SqliteStore::for_admin`]).
    pub(super) fn for_admin(&self) -> Self {
        Self { store: self.store.for_admin(), cipher: self.cipher.clone() }
    }

    pub(super) fn sqlite(&self) -> &SqliteStore {
        &self.store
    }
}

impl KeyedStore<RedisStore> {
    /// The store on a server, with the fleet's secret.
    pub(super) fn on_server(server: RedisServer, secret: &str, life: Duration) -> Self {
        Self { store: RedisStore::new(server, life), cipher: Cipher::of_fleet(secret) }
    }

    /// The same, over a connection of its own.
    pub(super) fn for_admin(&self) -> Self {
        Self { store: self.store.for_admin(), cipher: self.cipher.clone() }
    }

    pub(super) fn redis(&self) -> &RedisStore {
        &self.store
    }
}

impl<S: Store> KeyedStore<S> {
    #[cfg(test)]
    fn over(store: S, cipher: Cipher) -> Self {
        Self { store, cipher }
    }

    fn outcome(&self, put: WriteOutcome) -> WriteOutcome {
        match put {
            WriteOutcome::Existed(value) => WriteOutcome::Existed(self.cipher.open_value(value)),
            WriteOutcome::Written => WriteOutcome::Written,
        }
    }
}

impl<S: Store> wrapper::StoreWrapper for KeyedStore<S> {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.store)
    }

    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        let records = records.into_iter().map(|record| self.cipher.encrypted(record)).collect();
        let put = self.store.put(scope, records, only_if);
        Box::pin(async move { Ok(put.await?.into_iter().map(|put| self.outcome(put)).collect()) })
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        let records = records.into_iter().map(|record| self.cipher.encrypted(record)).collect();
        self.store.append(scope, records, only_if)
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        let encrypted =
            |draft: Draft| Draft { record: self.cipher.encrypted(draft.record), ..draft };
        self.store.put_drafts(instance, drafts.into_iter().map(encrypted).collect(), ended)
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        if !is_fact(kind) {
            return self.store.get(scope, kind, key);
        }
        let keyed = if is_hash(kind) { self.cipher.encrypt_hash(key) } else { key };
        let value = self.store.get(scope, kind, keyed);
        Box::pin(async move { Ok(value.await?.map(|value| self.cipher.open_value(value))) })
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        let keyed = fingerprints.into_iter().map(|hash| self.cipher.encrypt_hash(hash)).collect();
        self.store.session_by_fingerprint(tenant, keyed)
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        let key = if is_hash(kind) { self.cipher.encrypt_hash(key) } else { key };
        self.store.holder(kind, key)
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        let scan = self.store.scan(scope, newest);
        Box::pin(async move {
            Ok(scan.await?.into_iter().map(|record| self.cipher.opened(record)).collect())
        })
    }

    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        let gain = self.store.scan_since(scope, known_since, place);
        Box::pin(async move {
            let SessionGain { is_deleted, place, records, notes } = gain.await?;
            let records = records.into_iter().map(|record| self.cipher.opened(record)).collect();
            let notes = notes.into_iter().map(|note| StoredNote {
                key: self.cipher.open_hash(note.key),
                text: self.cipher.open_value(note.text),
            });
            Ok(SessionGain { is_deleted, place, records, notes: notes.collect() })
        })
    }

    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        self.store.put_note(scope, self.cipher.encrypted_note(&note), known_since)
    }

    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        self.store.remove_note(scope, self.cipher.encrypted_note(&note))
    }

    fn tell_events(&self, events: Vec<ToldEvent>) -> StoreFuture<'_, ()> {
        let keyed =
            |event: ToldEvent| ToldEvent { text: self.cipher.encrypt_value(&event.text), ..event };
        self.store.tell_events(events.into_iter().map(keyed).collect())
    }

    fn events_since(&self, place: Option<u64>) -> StoreFuture<'_, ToldEvents> {
        let told = self.store.events_since(place);
        Box::pin(async move {
            let mut told = told.await?;
            for event in &mut told.events {
                event.text = self.cipher.open_value(std::mem::take(&mut event.text));
            }
            Ok(told)
        })
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        match self.cipher.tenant_key {
            Some(key) => Box::pin(std::future::ready(Ok(key))),
            None => self.store.tenant_key(),
        }
    }
}

#[cfg(test)]
mod tests;
