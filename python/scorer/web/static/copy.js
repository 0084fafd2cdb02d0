// Adds a button to each code block that copies its text. Without access to the clipboard, the text is selected.
"use strict";
for (const part of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Copy";
  button.setAttribute("aria-describedby", part.getAttribute("aria-labelledby"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(part.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(part);
      button.textContent = "Selected. Press Ctrl+C";
    }
  });
  part.before(button);
}
