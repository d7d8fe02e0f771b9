#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

/// Room for everything.
const ROOMY: u64 = 1 << 20;

fn folder() -> (TempDir, PathBuf) {
    // In memory where the machine has it: nothing here tests the disk.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.unwrap();
    let path = folder.path().join("spool");
    (folder, path)
}

fn open(path: &Path, bytes_max: u64) -> Log {
    Log::open(path, bytes_max).unwrap().0
}

fn payload(n: usize) -> Vec<u8> {
    format!("record {n} {}", "x".repeat(n % 7)).into_bytes()
}

fn payloads(numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(payload).collect()
}

/// Everything that waits, which stays.
fn all(log: &mut Log) -> Vec<Vec<u8>> {
    let (frames, lost) = log.read(usize::MAX, u64::MAX).unwrap();
    assert_eq!(lost, 0);
    frames.into_iter().map(|frame| frame.payload).collect()
}

fn files(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_was_appended_comes_back_in_order_and_leaves_no_file_once_released() {
    let (_guard, path) = folder();
    let mut log = open(&path, ROOMY);
    assert_eq!((log.frames(), all(&mut log).len()), (0, 0));
    assert!(!path.exists(), "nothing is made before there is something");
    log.append(&payloads(0..3), Room::Bound).unwrap();
    log.append(&payloads(3..4), Room::Bound).unwrap();
    drop(log);
    let mut log = open(&path, ROOMY);
    log.append(&payloads(4..6), Room::Bound).unwrap();
    assert_eq!(log.frames(), 6);
    assert_eq!(all(&mut log), payloads(0..6));
    for n in 0..6 {
        let (frames, _) = log.read(1, u64::MAX).unwrap();
        assert_eq!(frames[0].payload, payload(n));
        log.release(&frames).unwrap();
        assert_eq!(log.frames(), 5 - n as u64);
    }
    assert_eq!((log.bytes(), files(&path)), (0, Vec::new()));
    log.append(&payloads(6..7), Room::Bound).unwrap();
    assert_eq!(all(&mut open(&path, ROOMY)), payloads(6..7));
}

#[test]
fn nobody_else_reads_it() {
    let (_guard, path) = folder();
    open(&path, ROOMY)
        .append(&payloads(0..1), Room::Bound)
        .unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&files(&path)[0])), (0o700, 0o600));
}

/// A crash leaves a part of what was being written: whatever that is, what was whole before stays, and no more.
#[test]
fn a_segment_that_ends_anywhere_is_cut_behind_its_last_whole_frame() {
    let (_guard, path) = folder();
    open(&path, ROOMY)
        .append(&payloads(0..4), Room::Bound)
        .unwrap();
    let file = files(&path).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut ends = vec![MAGIC.len()];
    for n in 0..4 {
        ends.push(ends[n] + FRAME_BYTES + payload(n).len());
    }
    for length in 0..=whole.len() {
        fs::create_dir_all(&path).unwrap();
        fs::write(&file, &whole[..length]).unwrap();
        let frames = ends
            .iter()
            .filter(|end| **end <= length)
            .count()
            .saturating_sub(1);
        let (mut log, found) = Log::open(&path, ROOMY).unwrap();
        let kept = if length < MAGIC.len() {
            0
        } else {
            ends[frames]
        };
        let expected = Found {
            frames: frames as u64,
            cut_bytes: (length - kept) as u64,
        };
        assert_eq!(found, expected, "{length} bytes");
        assert_eq!(all(&mut log), payloads(0..frames), "{length} bytes");
        // It goes on from there, also over another restart.
        log.append(&payloads(9..10), Room::Bound).unwrap();
        let mut again = open(&path, ROOMY);
        let mut expected = payloads(0..frames);
        expected.push(payload(9));
        assert_eq!(all(&mut again), expected, "{length} bytes");
        fs::remove_dir_all(&path).unwrap();
    }
}

/// Every single bit is under a checksum: no frame comes back changed, and none behind a changed one.
#[test]
fn a_changed_byte_is_found_wherever_it_is() {
    let (_guard, path) = folder();
    open(&path, ROOMY)
        .append(&payloads(0..3), Room::Bound)
        .unwrap();
    let file = files(&path).remove(0);
    let whole = fs::read(&file).unwrap();
    for place in 0..whole.len() {
        for bit in [0x01, 0x80] {
            let mut changed = whole.clone();
            changed[place] ^= bit;
            fs::create_dir_all(&path).unwrap();
            // It changes while it waits.
            fs::write(&file, &whole).unwrap();
            let mut log = open(&path, ROOMY);
            fs::write(&file, &changed).unwrap();
            let (frames, lost) = log.read(usize::MAX, u64::MAX).unwrap();
            let came: Vec<_> = frames.iter().map(|frame| frame.payload.clone()).collect();
            assert!(payloads(0..3).starts_with(&came), "byte {place}");
            let in_magic = place < MAGIC.len();
            assert_eq!(came.len() as u64 + lost, 3, "byte {place}");
            assert_eq!(came.len() == 3, in_magic, "byte {place}");
            log.release(&frames).unwrap();
            assert_eq!((log.frames(), all(&mut log).len()), (0, 0), "byte {place}");
            log.append(&payloads(5..6), Room::Bound).unwrap();
            assert_eq!(all(&mut log), payloads(5..6));
            fs::remove_dir_all(&path).unwrap();
            // It is found so at a start.
            fs::create_dir_all(&path).unwrap();
            fs::write(&file, &changed).unwrap();
            let mut log = open(&path, ROOMY);
            let came = all(&mut log);
            assert!(
                came.len() < 3 && payloads(0..3).starts_with(&came),
                "byte {place}"
            );
            fs::remove_dir_all(&path).unwrap();
        }
    }
}

#[test]
fn frames_of_another_place_do_not_check() {
    let (_guard, path) = folder();
    open(&path, ROOMY)
        .append(&payloads(0..2), Room::Bound)
        .unwrap();
    let file = files(&path).remove(0);
    let bytes = fs::read(&file).unwrap();
    // A copy of the whole segment under another number, and of its second frame in place of the first.
    fs::write(file.with_file_name(format!("{:016}{SUFFIX}", 7)), &bytes).unwrap();
    let second = MAGIC.len() + FRAME_BYTES + payload(0).len();
    let moved = [&bytes[..MAGIC.len()], &bytes[second..]].concat();
    fs::write(file.with_file_name(format!("{:016}{SUFFIX}", 8)), moved).unwrap();
    let (mut log, found) = Log::open(&path, ROOMY).unwrap();
    assert_eq!((found.frames, files(&path).len()), (2, 1));
    log.append(&payloads(2..3), Room::Bound).unwrap();
    assert_eq!(all(&mut log), payloads(0..3));
}

#[test]
fn it_takes_no_more_than_its_bound_and_an_eighth_for_what_settles() {
    let (_guard, path) = folder();
    let mut log = open(&path, 800);
    let one = vec![vec![b'a'; 100 - FRAME_BYTES]];
    let mut taken = 0;
    while log.append(&one, Room::Bound).is_ok() {
        taken += 1;
    }
    assert!((6..8).contains(&taken) && log.bytes() <= 800, "{taken}");
    assert!(matches!(
        log.append(&one, Room::Bound),
        Err(AppendError::Full(800))
    ));
    let small = vec![vec![b'b'; 10]];
    let mut settled = 0;
    while log.append(&small, Room::Reserve).is_ok() {
        settled += 1;
    }
    assert!(settled > 0 && log.bytes() <= 900, "{settled}");
    // A batch goes in as a whole or not at all.
    let before = log.frames();
    assert!(
        log.append(&[one.clone(), small].concat(), Room::Bound)
            .is_err()
    );
    assert_eq!(log.frames(), before);
    // What is shipped makes room again, a segment at a time.
    let (frames, _) = log.read(3, u64::MAX).unwrap();
    log.release(&frames).unwrap();
    log.append(&one, Room::Bound).unwrap();
    // A restart counts what is there.
    let bytes = log.bytes();
    drop(log);
    assert_eq!(open(&path, 800).bytes(), bytes);
    let mut off = open(&path, 0);
    assert!(matches!(
        off.append(&one, Room::Bound),
        Err(AppendError::Full(0))
    ));
    assert!(off.frames() > 0, "what waits is still shipped");
}

#[test]
fn a_folder_that_cannot_be_written_takes_nothing_and_says_so() {
    let (guard, _) = folder();
    let file = guard.path().join("a file");
    fs::write(&file, "").unwrap();
    let mut log = open(&guard.path().join("nowhere"), ROOMY);
    log.folder = file.join("spool");
    assert!(matches!(
        log.append(&payloads(0..1), Room::Bound),
        Err(AppendError::Io(_))
    ));
    assert_eq!(log.frames(), 0);
}

#[test]
fn reading_keeps_to_its_bounds() {
    let (_guard, path) = folder();
    let mut log = open(&path, 3_200);
    for n in 0..20 {
        log.append(&payloads(n..n + 1), Room::Bound).unwrap();
    }
    assert!(files(&path).len() > 1, "several segments");
    let numbers = |frames: Vec<Frame>| frames.len();
    assert_eq!(numbers(log.read(5, u64::MAX).unwrap().0), 5);
    assert_eq!(numbers(log.read(5, 1).unwrap().0), 1, "at least one");
    let mut shipped = Vec::new();
    while log.frames() > 0 {
        let (frames, _) = log.read(3, u64::MAX).unwrap();
        log.release(&frames).unwrap();
        shipped.extend(frames.into_iter().map(|frame| frame.payload));
    }
    assert_eq!(shipped, payloads(0..20));
}
