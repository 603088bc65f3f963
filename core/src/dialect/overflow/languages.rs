//! Messages in other languages in the words of the English grammar: 输入长度超过模型限制 becomes "input length exceeds
//! limit".
//!
//! The grammar looks for words near each number, hardly at their order, so that lists of words are enough. Chinese,
//! Japanese and Korean words are found anywhere, because what is around them is not separated; others are whole words,
//! Russian ones their beginnings. Pure.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Words of refusals in Chinese, Japanese and Korean, those first that begin with another one. What else is said becomes
/// blank.
const UNSEPARATED: &[(&str, &str)] = &[
    ("上下文", "context length"),
    ("提示词", "prompt"),
    ("提示詞", "prompt"),
    ("输入", "input"),
    ("輸入", "input"),
    ("对话", "conversation"),
    ("對話", "conversation"),
    ("会话", "conversation"),
    ("历史", "history"),
    ("歷史", "history"),
    ("消息", "messages"),
    ("请求", "requested"),
    ("請求", "requested"),
    ("实际", "current"),
    ("当前", "current"),
    ("當前", "current"),
    ("输出", "output"),
    ("輸出", "output"),
    ("生成", "output"),
    ("补全", "completion"),
    ("每分钟", "per minute"),
    ("流控", "rate limit"),
    ("限流", "rate limit"),
    ("频率", "rate limit"),
    ("并发", "rate limit"),
    ("速率", "rate limit"),
    ("访问量", "requests"),
    ("额度", "quota"),
    ("配额", "quota"),
    ("余额", "quota"),
    ("令牌", "token"),
    ("词元", "token"),
    ("字数太多", "too long"),
    ("字符", "characters"),
    ("图片", "image"),
    ("图像", "image"),
    ("音频", "audio"),
    ("视频", "video"),
    ("文件", "file"),
    ("文档", "document"),
    ("工具", "tool"),
    ("函数", "function"),
    ("超时", "timeout"),
    ("超长", "too long"),
    ("超長", "too long"),
    ("过长", "too long"),
    ("過長", "too long"),
    ("太长", "too long"),
    ("过大", "too large"),
    ("不能超过", "must not"),
    ("不得超过", "must not"),
    ("不超过", "must not"),
    ("应小于", "must"),
    ("超限", "exceeds limit"),
    ("超过", "exceeds"),
    ("超過", "exceeds"),
    ("超出", "exceeds"),
    ("大于", "greater"),
    ("达到", "reached"),
    ("长度", "length"),
    ("長度", "length"),
    ("窗口", "window"),
    ("最大", "maximum"),
    ("最多", "maximum"),
    ("上限", "limit"),
    ("限制", "limit"),
    // Japanese.
    ("入力", "input"),
    ("出力", "output"),
    ("長すぎ", "too long"),
    ("大きすぎ", "too large"),
    ("超え", "exceeds"),
    ("文字数", "characters"),
    ("画像", "image"),
    ("分あたり", "per minute"),
    ("プロンプト", "prompt"),
    ("コンテキスト", "context length"),
    ("コンテクスト", "context length"),
    ("ウィンドウ", "window"),
    ("トークン", "token"),
    ("メッセージ", "messages"),
    ("リクエスト", "requested"),
    ("レート", "rate limit"),
    ("ファイル", "file"),
    ("ツール", "tool"),
    // Korean.
    ("입력", "input"),
    ("출력", "output"),
    ("프롬프트", "prompt"),
    ("컨텍스트", "context length"),
    ("토큰", "token"),
    ("메시지", "messages"),
    ("요청", "requested"),
    ("대화", "conversation"),
    ("너무 길", "too long"),
    ("너무 깁", "too long"),
    ("너무 큽", "too large"),
    ("초과", "exceeds"),
    ("최대", "maximum"),
    ("길이", "length"),
    ("한도", "limit"),
    ("제한", "limit"),
    ("이미지", "image"),
    ("파일", "file"),
    ("도구", "tool"),
    ("분당", "per minute"),
];

/// Whole words of refusals in German, French, Spanish, Portuguese and Italian.
const WHOLE: &[(&str, &str)] = &[
    ("too", "zu trop demasiado demasiada muito troppo"),
    ("long", "lang lange largo larga longue longo longa lungo lunga"),
    ("large", "groß grande"),
    (
        "exceeds",
        "überschreitet überschreiten überschritten übersteigt übersteigen dépasse dépassent dépassé dépassée excède \
         supera superan superado superada excede exceden excedido excedida excedem ultrapassa ultrapassam superano \
         superato eccede",
    ),
    ("maximum", "maximal maximale maximalen höchstens maximale máximo máxima massimo massima"),
    ("limit", "grenze limite límite"),
    ("length", "länge longueur longitud comprimento lunghezza"),
    ("context length", "kontextlänge"),
    ("context window", "kontextfenster"),
    ("context", "kontext contexte contexto contesto"),
    ("window", "fenster fenêtre ventana janela finestra"),
    ("input", "eingabe entrée entrada ingresso"),
    ("output", "ausgabe sortie salida saída uscita"),
    ("requested", "anfrage requête solicitud solicitação requisição richiesta"),
    ("messages", "nachrichten mensajes mensagens messaggi"),
    ("token", "jetons"),
    ("image", "bild bilder imagen imágenes imagem imagens immagine immagini"),
    ("file", "datei dateien fichier fichiers archivo archivos arquivo arquivos"),
    ("tool", "werkzeug werkzeuge outil outils herramienta herramientas ferramenta ferramentas"),
    ("per minute", "minuto"),
    // They stand between words that belong together.
    ("", "des der du de la del da do"),
];

/// The same by word.
static BY_WORD: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let rows = WHOLE.iter();
    rows.flat_map(|(english, words)| words.split(' ').map(|word| (word, *english))).collect()
});

/// Beginnings of words of refusals in Russian, those first that begin with another one.
const BEGINNINGS: &[(&str, &str)] = &[
    ("слишком", "too"),
    ("длинн", "long"),
    ("длин", "length"),
    ("больш", "large"),
    ("превы", "exceeds"),
    ("максим", "maximum"),
    ("лимит", "limit"),
    ("ограничен", "limit"),
    ("контекст", "context"),
    ("окн", "window"),
    ("токен", "token"),
    ("запрос", "requested"),
    ("промпт", "prompt"),
    ("ввод", "input"),
    ("входн", "input"),
    ("вывод", "output"),
    ("выходн", "output"),
    ("сообщен", "messages"),
    ("изображен", "image"),
    ("файл", "file"),
    ("инструмент", "tool"),
    ("минут", "per minute"),
];

/// The text in lower case, with the words and signs of other languages in English.
pub(super) fn translated(text: &str) -> String {
    let mut english_text = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if is_separated(first) {
            let end = rest.find(|c| !is_separated(c)).unwrap_or(rest.len());
            english_text.push_str(english(&rest[..end]));
            rest = &rest[end..];
            continue;
        }
        let word = UNSEPARATED.iter().find(|(word, _)| rest.starts_with(word));
        if let Some((word, english)) = word {
            english_text.extend([" ", english, " "]);
            rest = &rest[word.len()..];
            continue;
        }
        match first {
            '。' | '；' | '！' | '？' => english_text.push_str(". "),
            '（' => english_text.push('('),
            '）' => english_text.push(')'),
            '，' | '、' => english_text.push(','),
            '：' => english_text.push(':'),
            first if is_unseparated(first) => english_text.push(' '),
            first => english_text.push(first),
        }
        rest = &rest[first.len_utf8()..];
    }
    english_text
}

fn english(word: &str) -> &str {
    if let Some(english) = BY_WORD.get(word) {
        return english;
    }
    if word.is_ascii() {
        return word;
    }
    let beginning = BEGINNINGS.iter().find(|(start, _)| word.starts_with(start));
    beginning.map_or(word, |(_, english)| english)
}

fn is_separated(c: char) -> bool {
    // A name as `max_tokens` is one word.
    (c.is_alphanumeric() || c == '_') && !is_unseparated(c)
}

fn is_unseparated(c: char) -> bool {
    // Kana, Chinese characters, Hangul.
    matches!(c, '\u{3041}'..='\u{30ff}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        translated(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn other_languages_are_read_as_english() {
        assert_eq!(read("输入长度超过模型限制。"), "input length exceeds limit .");
        assert_eq!(read("共233781个token（最大202752）"), "233781 token( maximum 202752)");
        assert_eq!(read("请求超时"), "requested timeout");
        assert_eq!(read("Prompt is too long。"), "Prompt is too long.");
        assert_eq!(read("モデルの最大コンテキスト長を超えて"), "maximum context length exceeds");
        assert_eq!(read("длина контекста превышает 8k"), "length context exceeds 8k");
        assert_eq!(read("la longueur du contexte dépasse"), "length context exceeds");
        assert_eq!(read("max_tokens limites"), "max_tokens limites", "no other word");
    }

    /// A word that begins like a later one would hide it.
    #[test]
    fn longer_words_come_first() {
        for list in [UNSEPARATED, BEGINNINGS] {
            for (index, (word, _)) in list.iter().enumerate() {
                let mut earlier = list[..index].iter();
                assert!(!earlier.any(|(other, _)| word.starts_with(other)), "{word}");
            }
        }
    }
}
