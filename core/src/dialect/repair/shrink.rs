//! Makes an image smaller: decodes it, scales it, and encodes it in the same format.
//!
//! The memory and time depend on the pixels, whose number is limited before decoding. The same image and goal
//! give the same bytes. Must not know why it has to be smaller, or where it is.

use std::io::Cursor;

use image::codecs::gif::GifEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, ImageDecoder, ImageFormat, ImageReader, Limits};

/// The required size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Goal {
    /// The longer side, at most, pixels.
    pub side: u32,
    /// The file, at most, bytes.
    pub bytes: usize,
}

/// Most bytes of a decoded image: 16 million pixels of four bytes. Larger images are left alone.
const DECODED: u64 = 64 * 1024 * 1024;
/// A smaller image would be useless, pixels of its longer side.
const LEAST: u32 = 32;
/// How many times it is scaled.
const TRIES: usize = 8;
/// The quality of photographs; below it, text in them becomes blurred.
const QUALITY: u8 = 80;
/// The speed of choosing a GIF's colours, from 1 to 30: the best choice takes six times as long.
const HASTE: i32 = 10;
/// The formats that providers accept, and that can be encoded.
const FORMATS: [(&str, ImageFormat); 4] = [
    ("image/png", ImageFormat::Png),
    ("image/jpeg", ImageFormat::Jpeg),
    ("image/gif", ImageFormat::Gif),
    ("image/webp", ImageFormat::WebP),
];

/// The file of an image reduced to `goal`; `None` if it is not an image, not of the declared type, too large
/// to decode, or cannot be reduced that far. `mime`: the declared type.
pub(crate) fn shrink(file: &[u8], mime: Option<&str>, goal: Goal) -> Option<Vec<u8>> {
    let format = format(file, mime)?;
    let (whole, orientation) = decoded(file, format)?;
    let longer = whole.width().max(whole.height());
    let mut side = goal.side.min(longer);
    let mut small = if side < longer { whole.thumbnail(side, side) } else { whole };
    small.apply_orientation(orientation);
    for _ in 0..TRIES {
        if small.width().max(small.height()) < LEAST.min(longer) {
            return None;
        }
        let written = written(&small, format)?;
        if written.len() <= goal.bytes {
            let is_smaller = side < longer || written.len() < file.len();
            return if is_smaller { Some(written) } else { None };
        }
        // Reduced in proportion to the excess, and a little more.
        let share = (goal.bytes as f64 / written.len() as f64).sqrt() * 0.95;
        side = ((f64::from(side) * share) as u32).min(side * 9 / 10).max(1);
        small = small.thumbnail(side, side);
    }
    None
}

fn format(file: &[u8], mime: Option<&str>) -> Option<ImageFormat> {
    let (is, format) = FORMATS
        .into_iter()
        .find(|(_, format)| image::guess_format(file).is_ok_and(|guessed| guessed == *format))?;
    let declared = mime.map(|mime| if mime == "image/jpg" { "image/jpeg" } else { mime });
    // A picture of another type than its block declares was refused for that.
    if declared.is_none_or(|declared| declared == is) { Some(format) } else { None }
}

fn decoded(file: &[u8], format: ImageFormat) -> Option<(DynamicImage, Orientation)> {
    // Eight bits per sample are what models see. Of an animation, the first frame.
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODED);
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().ok()?;
    if decoder.total_bytes() > DECODED {
        return None;
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let picture = DynamicImage::from_decoder(decoder).ok()?;
    let picture = match picture {
        wide @ (DynamicImage::ImageLuma16(_)
        | DynamicImage::ImageLumaA16(_)
        | DynamicImage::ImageRgb16(_)
        | DynamicImage::ImageRgba16(_)) => DynamicImage::ImageRgba8(wide.into_rgba8()),
        plain => plain,
    };
    Some((picture, orientation))
}

fn written(picture: &DynamicImage, format: ImageFormat) -> Option<Vec<u8>> {
    let mut file = Cursor::new(Vec::new());
    match format {
        ImageFormat::Jpeg => {
            picture.write_with_encoder(JpegEncoder::new_with_quality(&mut file, QUALITY)).ok()?;
        }
        ImageFormat::Gif => {
            let pixels = picture.to_rgba8();
            let (width, height) = pixels.dimensions();
            let mut encoder = GifEncoder::new_with_speed(&mut file, HASTE);
            encoder.encode(&pixels, width, height, ExtendedColorType::Rgba8).ok()?;
        }
        format => picture.write_to(&mut file, format).ok()?,
    }
    Some(file.into_inner())
}

/// Fuzz target: no bytes make it panic, and the result is as small as required.
#[cfg(any(test, fuzzing))]
pub fn fuzz(file: &[u8]) {
    let goal = Goal { side: 64, bytes: 4_096 };
    if let Some(small) = shrink(file, None, goal) {
        assert!(small.len() <= goal.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of this size that does not compress.
    fn picture(width: u32, height: u32) -> DynamicImage {
        let mut state = 7u32;
        let noise = image::RgbImage::from_fn(width, height, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, r, g, b] = state.to_le_bytes();
            image::Rgb([r, g, b])
        });
        DynamicImage::ImageRgb8(noise)
    }

    fn file(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        picture(width, height).write_to(&mut out, format).unwrap();
        out.into_inner()
    }

    fn size(file: &[u8]) -> (u32, u32) {
        let picture = image::load_from_memory(file).unwrap();
        (picture.width(), picture.height())
    }

    #[test]
    fn picture_keeps_its_type_and_shape() {
        for (mime, format) in FORMATS {
            let large = file(400, 100, format);
            let goal = Goal { side: 200, bytes: 1 << 20 };
            let small = shrink(&large, Some(mime), goal).unwrap_or_else(|| panic!("{mime}"));
            assert_eq!(size(&small), (200, 50));
            assert_eq!(image::guess_format(&small).unwrap(), format);
            assert_eq!(shrink(&large, Some(mime), goal), Some(small), "{mime}: the same bytes");
        }
        let large = file(400, 300, ImageFormat::Png);
        let small = shrink(&large, None, Goal { side: 8_000, bytes: large.len() / 4 }).unwrap();
        assert!(small.len() <= large.len() / 4, "{:?}", size(&small));
        assert!(size(&small).0 > 100, "{:?}", size(&small));
    }

    #[test]
    fn pictures_that_cannot_be_shrunk_are_left_unchanged() {
        let large = file(200, 200, ImageFormat::Png);
        let goal = Goal { side: 100, bytes: 1 << 20 };
        assert_eq!(shrink(&large, Some("image/jpeg"), goal), None, "another type");
        assert_eq!(shrink(&large[..large.len() / 2], None, goal), None, "broken off");
        assert_eq!(shrink(b"\x89PNG\r\n\x1a\n", None, goal), None, "a head alone");
        assert_eq!(shrink(b"", None, goal), None);
        assert_eq!(shrink(&large, None, Goal { bytes: 300, ..goal }), None, "nothing is left");
    }

    /// A small file with very many pixels is not decoded.
    #[test]
    fn small_file_with_very_many_pixels_is_not_decoded() {
        let mut out = Cursor::new(Vec::new());
        let plain = image::GrayImage::new(9_000, 9_000);
        DynamicImage::ImageLuma8(plain).write_to(&mut out, ImageFormat::Png).unwrap();
        let bomb = out.into_inner();
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        assert_eq!(shrink(&bomb, None, Goal { side: 100, bytes: 1 << 20 }), None);
    }

    proptest::proptest! {
        #[test]
        fn invariant_8_never_panics(at in 0usize..20_000, with in 0u8..=255, end in 0usize..20_000, kind in 0usize..4) {
            let mut file = file(40, 30, FORMATS[kind].1);
            if let Some(byte) = file.get_mut(at) {
                *byte = with;
            }
            file.truncate(end.max(20));
            fuzz(&file);
        }
    }
}
