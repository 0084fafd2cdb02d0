// Adds a button to each program that copies it. Without a clipboard the text is selected instead.
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
      button.textContent = "Selected: press Ctrl-C";
    }
  });
  part.before(button);
}
