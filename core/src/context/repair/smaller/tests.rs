//! Pictures that were refused for their size, made smaller (`docs/healing.md` "Smaller pictures").

use serde_json::{Value, json};

use super::*;
use crate::context::repair::tests::{proposed, refusal, scene, text, user};
use crate::context::scene::SessionFixture;
use crate::dialect::repair::RepairCause;

/// A picture of random pixels: a PNG in base64.
fn noise(width: u32, height: u32, seed: u32) -> String {
    let mut state = seed;
    let pixels = image::RgbImage::from_fn(width, height, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [_, r, g, b] = state.to_le_bytes();
        image::Rgb([r, g, b])
    });
    let mut file = std::io::Cursor::new(Vec::new());
    pixels.write_to(&mut file, image::ImageFormat::Png).unwrap();
    media::base64(&file.into_inner())
}

fn shown(pictures: &[String]) -> SessionFixture {
    let block = |data: &String| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let mut content: Vec<Value> = pictures.iter().map(block).collect();
    content.push(text("Look."));
    let mut scene = scene(&json!([user(&json!(content))]));
    scene.policy.heal.images = ImageRepair::Shrink;
    scene
}

fn refused(detail: RefusalDetail, limit: Option<u64>) -> Refusal {
    Refusal { detail: Some(detail), limit, ..refusal(RepairCause::Media) }
}

/// What is decided for each replaced picture: the longer side and the base64 length of the smaller one, `None` if text
/// replaces it.
fn decided_of(
    scene: &SessionFixture,
    refusal: &Refusal,
    room: usize,
) -> (Vec<Fact>, Vec<Option<(usize, usize)>>) {
    let proposal = proposed(scene, refusal);
    let facts = smaller(&scene.request(), &scene.known(), refusal, proposal.clone(), room);
    assert_eq!(facts.len(), proposal.len());
    let of = |(fact, placeholder): (&Fact, &Fact)| match fact {
        Fact::Repair(one) => match &one.repair {
            Repair::Picture { data, .. } => {
                let size = base64_size(data.as_bytes()).unwrap();
                Some((size.width.max(size.height), data.len()))
            }
            _ => {
                assert_eq!(fact, placeholder);
                None
            }
        },
        other => panic!("{other:?}"),
    };
    let sizes = facts.iter().zip(&proposal).map(of).collect();
    (facts, sizes)
}

const PLENTY: usize = 1 << 20;

#[test]
fn only_refusal_for_size_makes_pictures_smaller() {
    let mut scene = shown(&[noise(64, 48, 1)]);
    let may = |scene: &SessionFixture, detail| {
        may_be_smaller(&scene.request(), &Refusal { detail, ..refusal(RepairCause::Media) })
    };
    use RefusalDetail::{Bytes, Count, Format, Pixels, Request, Unsupported};
    for detail in [Bytes, Pixels, Request] {
        assert!(may(&scene, Some(detail)), "{detail:?}");
    }
    for detail in [Count, Format, Unsupported] {
        assert!(!may(&scene, Some(detail)), "{detail:?}");
    }
    assert!(!may(&scene, None));
    scene.policy.heal.images = ImageRepair::Text;
    assert!(!may(&scene, Some(Bytes)));
}

/// As small as the refusal demands: a side in pixels, a length of base64, or a quarter of its size if the request is
/// too large.
#[test]
fn picture_shrinks_as_far_as_needed() {
    let whole = noise(200, 100, 1);
    let mut scene = shown(std::slice::from_ref(&whole));
    let pixels = refused(RefusalDetail::Pixels, Some(100));
    let (facts, sizes) = decided_of(&scene, &pixels, PLENTY);
    let (side, letters) = sizes[0].unwrap();
    assert_eq!(side, 100);
    let half = refused(RefusalDetail::Bytes, Some(whole.len() as u64 / 2));
    let (_, of_bytes) = decided_of(&scene, &half, PLENTY);
    let (side, less) = of_bytes[0].unwrap();
    assert!(side > 100, "{side}, {less}");
    assert!(less <= whole.len() / 2, "{side}, {less}");
    assert!(less > whole.len() / 4, "{side}, {less}");
    let request = refused(RefusalDetail::Request, None);
    let (_, of_request) = decided_of(&scene, &request, PLENTY);
    let (_, less) = of_request[0].unwrap();
    assert!(less <= whole.len() / 4, "{less}");
    assert!(less > whole.len() / 10, "{less}");
    // It fits exactly into the room; with less room, text is used.
    assert_eq!(decided_of(&scene, &pixels, letters).1, [Some((100, letters))]);
    assert_eq!(decided_of(&scene, &pixels, letters - 1).1, [None]);
    // The smaller one was refused, too: for the same number of pixels text replaces it, for fewer pixels it becomes
    // smaller again.
    facts.into_iter().for_each(|fact| scene.ledger.add(fact));
    assert_eq!(decided_of(&scene, &pixels, PLENTY).1.len(), 1);
    assert_eq!(decided_of(&scene, &pixels, PLENTY).1, [None]);
    let lower = refused(RefusalDetail::Pixels, Some(50));
    assert_eq!(decided_of(&scene, &lower, PLENTY).1[0].unwrap().0, 50);
    let fits = refused(RefusalDetail::Bytes, Some(letters as u64));
    assert_eq!(decided_of(&scene, &fits, PLENTY).1, [None]);
    let less = refused(RefusalDetail::Bytes, Some(letters as u64 - 1));
    assert!(decided_of(&scene, &less, PLENTY).1[0].unwrap().1 < letters);
    assert_eq!(decided_of(&scene, &request, PLENTY).1, [None]);
}

/// After one refusal, as many pictures are made smaller as fit into the room together, eight at most.
#[test]
fn only_limited_number_of_pictures_is_shrunk_at_once() {
    let all: Vec<String> = (1..11).map(|seed| noise(64, 48, seed)).collect();
    let scene = shown(&all);
    let pixels = refused(RefusalDetail::Pixels, Some(40));
    let (_, sizes) = decided_of(&scene, &pixels, PLENTY);
    assert!(sizes[..8].iter().all(|size| size.is_some_and(|(side, _)| side == 40)), "{sizes:?}");
    assert_eq!(sizes[8..], [None, None]);
    let two = sizes[..2].iter().flatten().map(|(_, letters)| letters).sum();
    let (_, sizes) = decided_of(&scene, &pixels, two);
    assert!(sizes[0].is_some());
    assert!(sizes[1].is_some());
    assert!(sizes[2..].iter().all(Option::is_none));
}

/// If the refusal names no size, the longer side becomes 2,000 pixels.
#[test]
fn without_named_limit_picture_is_shrunk_to_2000_pixels() {
    let scene = shown(&[noise(2_100, 2, 1)]);
    let (_, sizes) = decided_of(&scene, &refused(RefusalDetail::Pixels, None), PLENTY);
    assert_eq!(sizes[0].unwrap().0, 2_000);
}
